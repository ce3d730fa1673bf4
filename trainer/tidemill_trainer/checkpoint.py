"""Checkpoints of the core: a Hugging Face folder with float32 weights, the optimizer, a copy of the conductor's store. Durable, then visible."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import msgspec
from safetensors import safe_open
from torch import Tensor

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STORE = "conductor.db"
FACTS = "trainer.json"

_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.gguf", "*.pt", "*.pth")


class DiskFull(Exception):
    """There is no room for a checkpoint."""


class Facts(msgspec.Struct, frozen=True):
    step: int
    updates: int  # of the optimizer; less than `step` when a step had no usable gradient
    digest: str  # of the weights as they are published


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    prefix, _, number = name.partition("-")
    return int(number) if prefix == "step" and number.isdigit() else None


def write(
    folder: Path,
    facts: Facts,
    weights: Iterable[tuple[str, Tensor]],
    optimizer: Iterable[tuple[str, Tensor]],
    model_folder: Path,
    store: Path,
) -> None:
    """Make `folder`, replacing what may be there. It has its name only once all of its bytes are on the disk.

    Raises:
        DiskFull: nothing of it is left, so that others find what room there is.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _fill(partial, facts, weights, optimizer, model_folder, store)
    except (OSError, sqlite3.OperationalError) as cause:
        shutil.rmtree(partial, ignore_errors=True)
        if _is_full(cause):
            raise DiskFull(f"{folder}: {cause}; free space on its disk") from cause
        raise
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    _sync(folder.parent)


def _fill(
    partial: Path,
    facts: Facts,
    weights: Iterable[tuple[str, Tensor]],
    optimizer: Iterable[tuple[str, Tensor]],
    model_folder: Path,
    store: Path,
) -> None:
    partial.mkdir(parents=True)
    for file in companions(model_folder):
        shutil.copyfile(file, partial / file.name)
    _declare_float32(partial / "config.json")
    write_safetensors(partial / WEIGHTS, weights)
    write_safetensors(partial / OPTIMIZER, optimizer)
    if store.exists():
        copy_store(store, partial / STORE)
    (partial / FACTS).write_bytes(msgspec.json.encode(facts))
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)


def _is_full(cause: OSError | sqlite3.OperationalError) -> bool:
    if isinstance(cause, OSError):
        return cause.errno in (errno.ENOSPC, errno.EDQUOT)
    return cause.sqlite_errorcode == sqlite3.SQLITE_FULL


def read_facts(folder: Path) -> Facts:
    return msgspec.json.decode((folder / FACTS).read_bytes(), type=Facts)


def prune(checkpoints: Path, keep: int, committed_step: int, needed_steps: frozenset[int]) -> None:
    """Leave the newest `keep` committed checkpoints and those of `needed_steps`; what is newer than `committed_step` never was part of the job."""
    steps = sorted(step for folder in checkpoints.glob("step-*") if (step := step_of(folder.name)) is not None)
    kept = frozenset([step for step in steps if step <= committed_step][-keep:]) | needed_steps
    for step in steps:
        if step not in kept:
            shutil.rmtree(checkpoints / name_of(step))
    for partial in checkpoints.glob(".step-*.partial"):
        shutil.rmtree(partial)


def companions(model_folder: Path) -> Iterator[Path]:
    """Everything of a model folder that is not weights: configuration, tokenizer, chat template, licence."""
    for file in sorted(model_folder.iterdir()):
        if file.is_file() and not any(file.match(pattern) for pattern in _WEIGHT_FILES):
            yield file


def write_safetensors(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """The safetensors format, straight from the tensors' memory (its own writer makes a second copy of everything first).

    Host tensors of float32, contiguous.
    """
    named = list(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in named:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in named:
            _write_memory(file, tensor)


def read_safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as stored:
        for name in stored.keys():  # noqa: SIM118 (not a mapping)
            yield name, stored.get_tensor(name)


def copy_store(store: Path, target: Path) -> None:
    """A consistent copy of a SQLite file that another process is writing."""
    address = f"{store.absolute().as_uri()}?mode=ro"  # a %, # or ? in the path is quoted there
    with closing(sqlite3.connect(address, uri=True)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def _write_memory(file: BinaryIO, tensor: Tensor) -> None:
    nbytes = tensor.numel() * tensor.element_size()
    file.write(memoryview((ctypes.c_char * nbytes).from_address(tensor.data_ptr())).cast("B"))


def _declare_float32(config: Path) -> None:
    """So that whoever loads the folder gets the numbers that are in it."""
    fields = json.loads(config.read_text())
    fields.pop("quantization_config", None)
    fields.pop("torch_dtype", None)
    config.write_text(json.dumps({**fields, "dtype": "float32"}, indent=2) + "\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

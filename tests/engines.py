"""A real engine with a tiny model, and weights to publish to it.

`shared_engine()` starts one for the whole test session (10 s): whoever needs an engine uses it, and leaves it awake, resumed, and with verified
weights.
"""

from __future__ import annotations

import atexit
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

from tidemill.local.parent import die_with_parent
from tidemill.local.ports import choose_ports
from tidemill.transfer import Region, Transport, transport
from tidemill.transfer.checksum import digest_of_shards, of_memory
from tidemill.wire.trainer import Shard, WeightSnapshot
from tidemill_rollout.model import resolve

MAX_LENGTH = 1024
MAX_EXECUTIONS = 8
START_SECONDS = 180.0
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class RunningEngine:
    process: subprocess.Popen[bytes]
    url: str
    token: str
    cell: str
    model: Path
    log_file: Path

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@cache
def tiny_model(family: str = "qwen3", dtype: str = "float32") -> Path:
    """The folder of a tiny random model, made once for the session."""
    return resolve(f"tiny:{family}", dtype, Path.cwd(), _session_folder())


@cache
def shared_engine() -> RunningEngine:
    """The session's engine: tiny Qwen3, cell-1. It has no version yet: publish one with `Publisher` before the first call."""
    engine = start_engine(tiny_model())
    atexit.register(engine.stop)
    return engine


def start_engine(model: Path, cell: str = "cell-1", dtype: str = "float32", max_length: int = MAX_LENGTH, token: str = "") -> RunningEngine:
    """Start an engine and wait until it serves; the caller stops it. Engines behind one gateway share a token."""
    port = choose_ports(cells=1).cells[0].engine
    token = token or secrets.token_hex(8)
    log_file = _session_folder() / f"engine-{cell}-{port}.log"
    command = [sys.executable, "-m", "tidemill_rollout.engine", "--model", str(model), "--port", str(port), "--cell", cell]
    command += ["--max-length", str(max_length), "--dtype", dtype, "--max-executions", str(MAX_EXECUTIONS), "--threads", "1"]
    with log_file.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "TIDEMILL_TOKEN": token}, preexec_fn=die_with_parent
        )
    engine = RunningEngine(process, f"http://127.0.0.1:{port}", token, cell, model, log_file)
    deadline = time.monotonic() + START_SECONDS
    while not _serves(engine):
        if process.poll() is not None or time.monotonic() > deadline:
            engine.stop()
            raise RuntimeError(f"the engine did not come up (exit code {process.returncode}):\n{engine.log()[-5000:]}")
        time.sleep(0.1)
    return engine


class Publisher:
    """Stands in for the core's trainer: holds a model's weights in exported memory, changes them, and describes them as a snapshot."""

    def __init__(self, model: Path, way: Transport | None = None) -> None:
        self.tensors = {name: t.contiguous() for name, t in load_file(model / "model.safetensors").items()}
        self._way = way or transport()
        self._offsets: dict[str, int] = {}
        size = 0
        for name, tensor in self.tensors.items():
            self._offsets[name], size = size, size + -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        self.memory = torch.zeros(size, dtype=torch.uint8)
        self.source = self._way.export(Region(self.memory.data_ptr(), size))

    def perturb(self, seed: int, scale: float = 0.02) -> None:
        """Other weights, the same for the same seed and history."""
        noise = torch.Generator().manual_seed(seed)
        for name, tensor in self.tensors.items():
            self.tensors[name] = tensor + scale * torch.randn(tensor.shape, generator=noise).to(tensor.dtype)

    def snapshot(self, version: int) -> WeightSnapshot:
        """Write the weights as they are now into the exported memory."""
        shards = []
        for name, tensor in self.tensors.items():
            at = self._offsets[name]
            self.memory[at : at + tensor.nbytes].copy_(tensor.reshape(-1).view(torch.uint8))
            checksum = of_memory(self.memory.data_ptr() + at, tensor.nbytes)
            shards.append(Shard(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), at, tensor.nbytes, checksum))
        return WeightSnapshot(version, version, digest_of_shards(shards), tuple(shards), self.source)

    def close(self) -> None:
        self._way.close()


@cache
def _session_folder() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="tidemill-tests-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _serves(engine: RunningEngine) -> bool:
    request = urllib.request.Request(engine.url + "/control/v1/healthy", headers={"Authorization": f"Bearer {engine.token}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False

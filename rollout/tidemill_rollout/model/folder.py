"""Is this a Hugging Face model folder that can be served and trained? Reads headers only, so it costs milliseconds."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")


class ModelError(Exception):
    """The source or its folder cannot be used. The message names it, what is wrong, and what to do."""


def check(folder: Path) -> dict[str, Any]:
    """Return config.json when configuration, weights, tokenizer and chat template are all there.

    Raises:
        ModelError: names everything that is missing or broken, in one message.
    """
    if not folder.is_dir():
        raise ModelError(f"model folder {folder}: there is no such folder; give one with config.json, *.safetensors and a tokenizer")
    config, problems = _config(folder)
    problems += _weights(folder) + _tokenizer(folder)
    if problems:
        raise ModelError(f"model folder {folder}: " + "; ".join(problems))
    return config


def _config(folder: Path) -> tuple[dict[str, Any], list[str]]:
    file = folder / "config.json"
    if not file.is_file():
        return {}, ["config.json is missing"]
    try:
        config = json.loads(file.read_bytes())
    except ValueError as cause:
        return {}, [f"config.json is not JSON ({cause})"]
    if not isinstance(config, dict) or not config.get("architectures"):
        return {}, ["config.json names no architectures"]
    return config, []


def _weights(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as cause:
            return [f"{index.name} is broken ({type(cause).__name__}: {cause})"]
    else:
        names = sorted(f.name for f in folder.glob("*.safetensors"))
        if not names:
            return ["there are no *.safetensors"]
    return [problem for name in names if (problem := _safetensors(folder / name))]


def _safetensors(file: Path) -> str:
    """A download that stopped half-way has a good header and too few bytes."""
    if not file.is_file():
        return f"{file.name} is missing"
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
        if length > size - 8:
            return f"{file.name} is not a safetensors file"
        try:
            entries = json.loads(opened.read(length))
            end = max((entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{file.name} is not a safetensors file"
    if size < 8 + length + end:
        return f"{file.name} is cut off: {size} of {8 + length + end} bytes"
    return ""


def _tokenizer(folder: Path) -> list[str]:
    problems = []
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        problems.append("there is no tokenizer (" + ", ".join(TOKENIZER_FILES) + ")")
    if not _has_chat_template(folder):
        problems.append(
            "there is no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): take the instruction-tuned model, or add one"
        )
    return problems


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_bytes()).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False

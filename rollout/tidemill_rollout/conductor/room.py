"""Whether the disk of the work folder has room. Without it, what harnesses, evaluators and the core do fails for no fault of theirs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LEAST_FREE_BYTES = 64 * 2**20
"""With less the job pauses: while stores can still be written, and what runs can come to its end."""


def shortage(workdir: Path) -> str:
    """What is the matter, in the same words as long as it lasts; empty when there is room for the next checkpoint and more."""
    checkpoints = workdir / "checkpoints"
    wanted = {workdir: LEAST_FREE_BYTES}
    wanted[_disk_of(checkpoints, workdir)] = LEAST_FREE_BYTES + _newest_checkpoint_bytes(checkpoints)
    short = [f"{at}: its disk has less than {size >> 20} MiB left" for at, size in wanted.items() if shutil.disk_usage(at).free < size]
    return f"{'; '.join(short)}; free space, the job goes on by itself" if short else ""


def _disk_of(checkpoints: Path, workdir: Path) -> Path:
    """On a cluster checkpoints are a volume of their own."""
    apart = checkpoints.is_dir() and checkpoints.stat().st_dev != workdir.stat().st_dev
    return checkpoints if apart else workdir


def _newest_checkpoint_bytes(checkpoints: Path) -> int:
    newest = max(checkpoints.glob("step-*"), default=None)
    try:
        return sum(entry.stat().st_size for entry in os.scandir(newest)) if newest else 0
    except FileNotFoundError:  # it has just been pruned
        return 0

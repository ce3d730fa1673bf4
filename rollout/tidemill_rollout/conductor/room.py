"""Whether the disk of the work folder has room. Without it, what harnesses, evaluators and the core do fails for no fault of theirs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LEAST_FREE_BYTES = 64 * 2**20
"""With less the job pauses: while stores can still be written, and what runs can come to its end."""


def shortage(workdir: Path) -> str:
    """What is the matter, in the same words as long as it lasts; empty when there is room for the next checkpoint and more."""
    wanted = LEAST_FREE_BYTES + _newest_checkpoint_bytes(workdir / "checkpoints")
    if shutil.disk_usage(workdir).free >= wanted:
        return ""
    return f"{workdir}: its disk has less than {wanted >> 20} MiB left; free space, the job goes on by itself"


def _newest_checkpoint_bytes(checkpoints: Path) -> int:
    newest = max(checkpoints.glob("step-*"), default=None)
    try:
        return sum(entry.stat().st_size for entry in os.scandir(newest)) if newest else 0
    except FileNotFoundError:  # it has just been pruned
        return 0

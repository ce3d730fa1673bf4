"""What a child and everything below it takes of the machine, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_seconds: float  # of what lives, and of what has ended below it
    memory_bytes: int  # resident; what processes share counts in each


def usage(pid: int, root: Path = Path("/proc")) -> Usage | None:
    """None when there is no such process."""
    found = [read for process in _family(pid, root) if (read := _read(root / str(process)))]
    return Usage(sum(u.cpu_seconds for u in found), sum(u.memory_bytes for u in found)) if found else None


def _family(pid: int, root: Path) -> Iterator[int]:
    """The process and its descendants, each under the thread that started it."""
    yield pid
    for children in (root / str(pid) / "task").glob("*/children"):
        try:
            below = children.read_text().split()
        except OSError:
            continue  # it has ended meanwhile
        for child in below:
            yield from _family(int(child), root)


def _read(process: Path) -> Usage | None:
    try:
        text = (process / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # after the name, which may hold anything; the first is the third of proc(5)
    return Usage(sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE_BYTES)

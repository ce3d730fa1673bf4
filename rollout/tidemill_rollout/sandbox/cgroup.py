"""Limits on a jail as a whole (memory, number of processes) by control groups, where this process may make them.

Version 2: a group below the root group (as root) or below the user's own systemd manager. Version 1: the `memory` and `pids` hierarchies.
Where neither can be written, there are none, and `process.py` counts and kills instead.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

NAME = "tidemill"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Group:
    """One jail's group; a folder in each hierarchy."""

    folders: tuple[Path, ...]

    @property
    def doors(self) -> tuple[str, ...]:
        """Files into which a process writes its id to be in the group."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def remove(self) -> bool:
        """False: not yet. The kernel lets go of the dead a moment after they are reaped."""
        busy = [folder for folder in self.folders if not _removed(folder)]
        return not busy


@dataclass(frozen=True, slots=True)
class Groups:
    """Where groups can be made: folder -> the limits that are set there."""

    memory: Path
    processes: Path
    unified: bool

    def make(self, memory_bytes: int, processes: int) -> Group:
        name = f"{os.getpid()}-{next(_numbers)}"
        folders = tuple(dict.fromkeys((self.memory / name, self.processes / name)))
        for folder in folders:
            folder.mkdir()
        (folders[0] / ("memory.max" if self.unified else "memory.limit_in_bytes")).write_text(str(memory_bytes))
        (folders[-1] / "pids.max").write_text(str(processes))
        return Group(folders)


def find(root: Path = Path("/sys/fs/cgroup")) -> Groups | None:
    """Where this process may make groups, found by making one; None when nowhere."""
    manager = root / f"user.slice/user-{os.getuid()}.slice/user@{os.getuid()}.service"
    places = [Groups(place / NAME, place / NAME, True) for place in (root, manager) if (place / "cgroup.controllers").is_file()]
    if (root / "pids").is_dir() and (root / "memory").is_dir():
        places.append(Groups(root / "memory" / NAME, root / "pids" / NAME, False))
    return next((groups for groups in places if _usable(groups)), None)


def sweep(groups: Groups) -> None:
    """Remove what earlier processes left, because they were killed."""
    for parent in {groups.memory, groups.processes}:
        for folder in parent.iterdir():
            if folder.is_dir() and not Path("/proc", folder.name.partition("-")[0]).exists():
                _removed(folder)


def _usable(groups: Groups) -> bool:
    try:
        for parent in {groups.memory, groups.processes}:
            parent.mkdir(exist_ok=True)
        if groups.unified:
            (groups.memory / "cgroup.subtree_control").write_text("+memory +pids")
        group = groups.make(2**30, 16)
    except OSError:
        return False
    enterable = _enterable(group)
    group.remove()
    return enterable


def _enterable(group: Group) -> bool:
    child = os.posix_spawn("/bin/sh", ["sh", "-c", 'for door; do echo $$ > "$door" || exit 1; done 2>/dev/null', "sh", *group.doors], os.environ)
    return os.waitpid(child, 0)[1] == 0


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True

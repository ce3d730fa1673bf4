"""Removes what a run of a test cluster left on the machine: `python -m tests.cluster.sweeping FOLDER` does so when its standard input ends.

Only the standard library: this starts beside every run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PREFIX = "tm-"
LOCK = "lock"
MARK = "TIDEMILL_TEST_CLUSTER"  # in the environment of its programs, and so of what they start: the name of the run
_CGROUPS = Path("/sys/fs/cgroup")
_DYING_SECONDS = 20


def sweep(folder: Path, owner_is_dying: bool = False) -> None:
    """Remove everything that carries the folder's name, unless its owner lives or somebody else is at it.

    A dying owner's pipe may close before its lock is released: then wait for that.
    """
    try:
        lock = (folder / LOCK).open("r")
    except (FileNotFoundError, PermissionError):  # gone meanwhile, or another user's
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if owner_is_dying else fcntl.LOCK_NB))
        except BlockingIOError:
            return
        if not folder.exists():  # somebody else was faster
            return
        kill_all(folder.name)  # networks and mounts of the nodes end with their last process
        for group in sorted(cgroups(folder.name), key=lambda path: len(path.parts), reverse=True):
            group.rmdir()
        shutil.rmtree(folder)


def cgroups(name: str) -> list[Path]:
    """The control group of this name and all below it, in each hierarchy (one in version 2, one a controller in version 1)."""
    tops = [base / name for base in (_CGROUPS, *_CGROUPS.glob("*/")) if (base / name / "cgroup.procs").exists()]
    return [Path(folder) for top in tops for folder, _, _ in os.walk(top)]


def kill_all(name: str) -> None:
    """Kill the run's programs and everything in its control groups, and wait until they are gone: they would write while we delete."""
    _kill_until_none(lambda: marked(name) | inhabitants(name), name)


def kill_group(name: str) -> None:
    """Kill everything in the control groups of this name, e.g. of one node: `RUN/n0`."""
    _kill_until_none(lambda: inhabitants(name), name)


def inhabitants(group: str) -> set[int]:
    return {int(line) for folder in cgroups(group) for line in _lines(folder / "cgroup.procs")}


def marked(name: str) -> set[int]:
    """The processes with this mark."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if f"{MARK}={name}".encode() in environment.split(b"\0"):
            found.add(int(process.name))
    return found


def _kill_until_none(processes: Callable[[], set[int]], name: str) -> None:
    deadline = time.monotonic() + _DYING_SECONDS
    while found := processes():
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(found)} of the test cluster {name} do not die")
        time.sleep(0.05)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:  # the group went meanwhile
        return []


if __name__ == "__main__":
    sys.stdin.buffer.read()
    sweep(Path(sys.argv[1]), owner_is_dying=True)

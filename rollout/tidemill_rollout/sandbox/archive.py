"""The archives that travel between the conductor and sandbox pods. What a sandbox brings is never unpacked here, only checked and read.

Handed over: `app/` (the work folder), `logs/`, `tests/` (the evaluator's), `run/harness/` (instruction and programs), and last the order.
Brought back: the command's output, the folders that the order names, and last the report.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import IO

import msgspec

from tidemill_rollout.sandbox import enter
from tidemill_rollout.sandbox.enter import ORDER, OUTPUT, REPORT, Order, Report

MOST_MEMBERS = 500_000
REPORT_BYTES = 256 * 1024

HEADER_BYTES = 512 * 1024
"""Of a member's extended header, which is read whole. A name and a link take a few thousand."""

NAME_BYTES, PART_BYTES = 4000, 255
"""What a path may have, and between two slashes. What is laid out elsewhere must not fail there."""

BLOCK_BYTES = 4096
DISK_BYTES = 1536 * 2**20
"""What is laid out may take so much, small files by blocks: the folders of a pod hold no more."""

LOGS_BYTES = 64 * 2**20
"""Of the harness's logs, what tests get to see."""

LATEST = 2**33
"""No time of a file beyond this can be set everywhere."""


class BadArchive(Exception):
    """What a sandbox brought is not as `enter.py` packs it."""


def write(
    path: Path,
    order: Order,
    folders: Mapping[str, Path],
    files: Mapping[str, bytes],
    *,
    empty: Iterable[str] = (),
    work: Path | None = None,
    left_out: Collection[str] = (),
) -> None:
    """An archive to hand over. `folders` and `files` go to the names they are mapped from; `work` is one that was brought."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in empty:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        if work is not None:
            _copy(work, archive)
        for inside, source in folders.items():
            for entry, name in enter.walk(str(source), inside) if source.is_dir() else ():
                member = None if name in left_out else enter.member_of(entry, name)
                if member is not None and member.isreg():
                    with open(entry, "rb") as file:
                        archive.addfile(member, file)
                elif member is not None:
                    archive.addfile(member)
        for name, content in files.items():
            enter.add(archive, name, content)
        enter.add(archive, ORDER, msgspec.json.encode(order))


def check(path: Path, bring: Iterable[str]) -> Report:
    """The report in what was brought.

    Raises:
        BadArchive: it is cut short, or has a member with a name or of a kind that `enter.py` never packs.
    """
    allowed = tuple(f"{name}/" for name in bring)
    shape = _Shape()
    last: bytes | None = None
    try:
        with _Headers(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                last = None
                if archive.pax_headers:
                    raise BadArchive("it has headers for all of its members")
                _check_member(member, allowed)
                shape.add(member)
                if member.name == REPORT:
                    last = _content(archive, member, REPORT_BYTES)
                _forget(archive)
    except (tarfile.TarError, ValueError, EOFError, RecursionError) as problem:
        raise BadArchive(f"no archive: {problem}") from problem
    if last is None:
        raise BadArchive(f"cut short: {REPORT} is not its last member")
    try:
        return msgspec.json.decode(last, type=Report)
    except msgspec.MsgspecError as problem:
        raise BadArchive(f"{REPORT}: {problem}") from problem


def read(path: Path, names: Iterable[str], most: int) -> dict[str, bytes | None]:
    """Some members of a checked archive, at most so many bytes of each: None for what is no file. Names that it lacks are left out."""
    wanted = set(names)
    with tarfile.open(path, "r:") as archive:
        return {m.name: _content(archive, m, most) if m.isreg() else None for m in archive if m.name in wanted}


class _Headers(io.FileIO):
    """What is read at once is read into memory, and how much that is says the archive."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


class _Shape:
    """What lies where: no name twice, nothing below what is no folder, and not too much of it."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._others: set[str] = set()
        self._disk_bytes = 0

    def add(self, member: tarfile.TarInfo) -> None:
        name = member.name
        if name in self._others or (name in self._folders and not member.isdir()):
            raise BadArchive(f"{name!r} is there twice, or others lie below it and it is no folder")
        above = name.rpartition("/")[0]
        while above and above not in self._folders:  # above a known one, all are known
            if above in self._others:
                raise BadArchive(f"{name!r} lies below what is no folder")
            self._folders.add(above)
            above = above.rpartition("/")[0]
        (self._folders if member.isdir() else self._others).add(name)
        if len(self._folders) + len(self._others) > MOST_MEMBERS:
            raise BadArchive(f"more than {MOST_MEMBERS} files and folders")
        self._disk_bytes += BLOCK_BYTES + -(-member.size // BLOCK_BYTES) * BLOCK_BYTES
        if self._disk_bytes > DISK_BYTES:
            raise BadArchive(f"laid out it takes more than {DISK_BYTES} bytes")


def _check_member(member: tarfile.TarInfo, allowed: tuple[str, ...]) -> None:
    name = member.name
    if name not in (OUTPUT, REPORT) and (not name.startswith(allowed) or {"", ".", ".."} & set(name.split("/"))):
        raise BadArchive(f"{name!r} belongs nowhere")
    plain = member.isreg() and not member.issparse()
    if name in (OUTPUT, REPORT) and not plain:
        raise BadArchive(f"{name!r} is not a file")
    if not (plain or member.isdir() or member.issym()):
        raise BadArchive(f"{name!r} is neither file, folder nor link")
    if member.size < 0 or _bytes(name) > NAME_BYTES or max(map(_bytes, name.split("/"))) > PART_BYTES:
        raise BadArchive(f"{name[:100]!r} has a size or a name that no file has")
    if member.issym() and not 0 < _bytes(member.linkname) <= NAME_BYTES:
        raise BadArchive(f"{name!r} is a link that leads nowhere")


def _bytes(name: str) -> int:
    """Its length on a disk. Raises `ValueError` for what has none."""
    if "\0" in name:
        raise ValueError("a name with a NUL")
    return len(os.fsencode(name))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read(most)


def _forget(archive: tarfile.TarFile) -> None:
    """It would keep every member it has seen: 1 kB each."""
    vars(archive)["members"].clear()


def _copy(work: Path, archive: tarfile.TarFile) -> None:
    """The work and what the harness wrote for people, at most `LOGS_BYTES` of that; never what it wrote where tests put their reward."""
    logs = 0
    with tarfile.open(work, "r:") as brought:
        for member in brought:
            _forget(brought)
            if not member.name.startswith(("app/", "logs/agent/", "logs/artifacts/")):
                continue
            if not member.name.startswith("app/"):
                logs += BLOCK_BYTES + member.size
                if logs > LOGS_BYTES:
                    continue
            file: IO[bytes] | None = brought.extractfile(member) if member.isreg() else None
            archive.addfile(_plain(member), file if file is not None else io.BytesIO())


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what its extended header may say besides, and with a time that can be set."""
    plain = tarfile.TarInfo(member.name)
    plain.type, plain.linkname, plain.size, plain.mode = member.type, member.linkname, member.size, member.mode & 0o777
    plain.mtime = int(member.mtime) if 0 <= member.mtime <= LATEST else 0
    return plain

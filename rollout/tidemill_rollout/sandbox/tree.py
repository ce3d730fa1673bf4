"""Folders that untrusted programs wrote: measured, copied and removed without following their links or trusting their shapes."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

INODE_BYTES = 4096
"""What an entry costs at least, as a byte in a file does: with a million empty files, a copy takes minutes."""

MANY_ENTRIES = 50_000
"""A folder of more that is not copied in time is to blame itself."""

_SURROUNDINGS = (
    "No space left on device",
    "Disk quota exceeded",
    "Input/output error",
    "Read-only file system",
    "Cannot allocate memory",
    "Too many open files",
    "Structure needs cleaning",
    "Stale file handle",
)
"""What `cp` and `rm` complain of when it is not the folder's shape that hinders them."""


class TreeError(Exception):
    """A folder could not be copied or removed. `by_itself`: because of what is in it, not because of this machine."""

    def __init__(self, text: str, by_itself: bool = False) -> None:
        super().__init__(text)
        self.by_itself = by_itself


def measure(folder: Path, enough: int, contents: bool = True) -> int:
    """Bytes on disk below `folder`, at least; stops counting above `enough`. Folders that cannot be read count as empty.

    Without `contents` entries alone count, as if all files were empty.
    """
    total = 0
    waiting = [str(folder)]
    while waiting:
        path = waiting.pop()
        try:
            for name, status in _entries(path):
                total += INODE_BYTES + (status.st_blocks * 512 if contents else 0)
                if total > enough:
                    return total
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(f"{path}/{name}")
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # it changes under our hands
            continue
        except OSError as problem:
            if problem.errno == errno.ELOOP:  # a folder has become a link: what it leads to is not the folder's
                continue
            return enough + 1  # nested deeper than a path can name
    return total


def is_folder(path: Path) -> bool:
    """A folder itself, not a link to one. False also for what cannot be looked at."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def open_up(folder: Path) -> None:
    """Give ourselves the rights on `folder` (not what is in it) that a program that ran as us may have taken. It may be gone, or a link."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(os.fstat(descriptor).st_mode) | stat.S_IRWXU)
    except OSError:  # another user's
        pass
    finally:
        os.close(descriptor)


def digest(folder: Path, most_bytes: int) -> str:
    """Of the names, kinds and contents below `folder`, which nobody changes meanwhile. "" where that is more than `most_bytes`, or cannot be read."""
    running = hashlib.blake2b(digest_size=16)
    left = most_bytes
    waiting = [""]
    try:
        while waiting:
            inside = waiting.pop()
            for name, status in sorted(_entries(f"{folder}/{inside}"), key=lambda entry: entry[0]):
                path = f"{inside}/{name}"
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                left -= INODE_BYTES + size
                if left < 0:
                    return ""
                running.update(f"{path}\0{status.st_mode:o} {size}\0".encode(errors="surrogateescape"))
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(path)
                elif stat.S_ISLNK(status.st_mode):
                    running.update(os.readlink(f"{folder}/{path}").encode(errors="surrogateescape"))
                elif stat.S_ISREG(status.st_mode):
                    with open(f"{folder}/{path}", "rb") as file:
                        while chunk := file.read(2**20):
                            running.update(chunk)
    except OSError:
        return ""
    return f"blake2b:{running.hexdigest()}"


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return f"blake2b:{hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()}"


async def copy(source: Path, target: Path, seconds: float = 300.0, ours: bool = False) -> None:
    """Copy the folder `source` to `target`, which must not exist: links as links, modes kept, owners not. What is `ours` is opened up if need be.

    Raises:
        TreeError: `source` is no folder, or one that cannot be copied.
    """
    if not is_folder(source):  # `cp` would make the target another link to the same place
        raise TreeError(f"{source} is not a folder")
    command = ("cp", "-R", "-P", "--preserve=mode,timestamps,links", "--", str(source), str(target))
    try:
        await _run(seconds, *command)
    except TreeError as problem:
        if ours and "Permission denied" in str(problem):
            await remove(target)
            await _run(seconds, "chmod", "-R", "u+rwX", "--", str(source))
            await _run(seconds, *command)
            return
        if "not done within" in str(problem):
            many = await asyncio.to_thread(measure, source, MANY_ENTRIES * INODE_BYTES, contents=False)
            problem.by_itself = many > MANY_ENTRIES * INODE_BYTES
        raise


async def remove(folder: Path, seconds: float = 300.0) -> None:
    """Remove `folder`, however deep and whatever its modes. It may be gone already. Of a link, the link."""
    if not os.path.lexists(folder):
        return
    try:
        await _run(seconds, "rm", "-rf", "--", str(folder))
    except TreeError:  # an ordinary user cannot empty a folder it took its own rights from
        if is_folder(folder):
            await _run(seconds, "chmod", "-R", "u+rwX", "--", str(folder))
        await _run(seconds, "rm", "-rf", "--", str(folder))


def _entries(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """What lies in the folder at `path`. Its last part is not followed if it is a link by now."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                yield entry.name, entry.stat(follow_symlinks=False)
    finally:
        os.close(descriptor)


async def _run(seconds: float, *command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.defpath, "LC_ALL": "C"},  # its complaints are read
    )
    try:
        _, complaint = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise TreeError(f"{' '.join(command)}: not done within {seconds:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        text = complaint.decode(errors="replace")
        by_itself = not any(sign in text for sign in _SURROUNDINGS)
        raise TreeError(f"{' '.join(command)}: {_shortened(text)}", by_itself)


def _shortened(text: str) -> str:
    """A complaint may name a path of kilobytes."""
    text = text.strip()
    return text if len(text) <= 500 else f"{text[:250]} ... {text[-250:]}"

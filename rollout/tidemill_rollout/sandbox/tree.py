"""Folders that untrusted programs wrote: measured, copied and removed without following their links or trusting their shapes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

INODE_BYTES = 256
"""What an entry costs at least, so that a million empty files are not free."""


class TreeError(Exception):
    """A folder could not be copied or removed."""


def measure(folder: Path, enough: int) -> int:
    """Bytes on disk below `folder`, at least; stops counting above `enough`. Folders that cannot be read count as empty."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    total += INODE_BYTES + status.st_blocks * 512
                    if total > enough:
                        return total
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):  # it changes under our hands
            continue
        except OSError:  # nested deeper than a path can name
            return enough + 1
    return total


async def copy(source: Path, target: Path, seconds: float = 60.0) -> None:
    """Copy `source` to `target`, which must not exist: links as links, modes kept, owners not."""
    await _run(seconds, "cp", "-R", "-P", "--preserve=mode,timestamps,links", "--", str(source), str(target))


async def remove(folder: Path, seconds: float = 60.0) -> None:
    """Remove `folder`, however deep and whatever its modes. It may be gone already."""
    if not os.path.lexists(folder):
        return
    try:
        await _run(seconds, "rm", "-rf", "--", str(folder))
    except TreeError:  # an ordinary user cannot empty a folder it took its own rights from
        await _run(seconds, "chmod", "-R", "u+rwX", "--", str(folder))
        await _run(seconds, "rm", "-rf", "--", str(folder))


async def _run(seconds: float, *command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
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
        raise TreeError(f"{' '.join(command)}: {complaint[:500].decode(errors='replace').strip()}")

"""Keeps the gateway's socket where jails see it. A restarted gateway makes a new socket; what is mounted in running jails stays the old one.

So jails see a folder that holds nothing but a hard link to the socket, and the link is renewed when the socket is.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

POLL_SECONDS = 0.25


def renew(socket: Path, door: Path) -> None:
    """Make `door` the same socket as `socket`. Both lie in one file system. While there is no socket the old door stays."""
    try:
        current = socket.stat().st_ino
    except FileNotFoundError:
        return
    try:
        if door.stat().st_ino == current:
            return
    except FileNotFoundError:
        pass
    fresh = door.with_name(f".{door.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    try:
        os.link(socket, fresh)
    except FileNotFoundError:  # the gateway is just replacing it
        return
    fresh.rename(door)


async def keep(socket: Path, door: Path) -> None:
    """Renew for ever."""
    while True:
        renew(socket, door)
        await asyncio.sleep(POLL_SECONDS)

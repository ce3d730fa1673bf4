"""SIGTERM and SIGINT as an event."""

from __future__ import annotations

import asyncio
import signal


def claim(told: asyncio.Event) -> None:
    """`told` is set by the signals from now on. To be repeated after kopf has started, which claims them for itself."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)

"""Work that holds up the event loop is done one piece a round: a crowd that comes at once keeps neither sockets nor timers waiting.

Ten thousand requests in one round would be half a minute in which no connection to an engine is made, and all of them seem to have timed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Rounds:
    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(1)  # who comes first is served first

    async def do[T](self, work: Callable[[], T]) -> T:
        async with self._gate:
            done = work()
            await asyncio.sleep(0)
            return done

"""Finished turns on their way to the conductor: in the background, again and again until it acknowledges them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.telemetry.logs import Log
from tidemill.trajectory.records import Turn
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.gateway import Turns
from tidemill.wire.http import Refused, Rejected, Unreachable

BATCH = 64
FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 2.0

log = Log(__name__)


@dataclass(slots=True)
class _Outbox:
    turns: list[Turn] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Delivery:
    """One outbox for each attempt of each execution."""

    def __init__(self, conductor: ConductorClient, acknowledged: Callable[[list[str]], None]) -> None:
        self._conductor = conductor
        self._acknowledged = acknowledged
        self._outboxes: dict[tuple[str, int], _Outbox] = {}

    def add(self, turn: Turn) -> None:
        key = (turn.execution, turn.attempt)
        outbox = self._outboxes.setdefault(key, _Outbox())
        outbox.turns.append(turn)
        if outbox.task is None:
            outbox.task = asyncio.create_task(self._empty(key, outbox))

    @property
    def held(self) -> int:
        """Turns that the conductor has not acknowledged."""
        return sum(len(outbox.turns) for outbox in self._outboxes.values())

    async def flush(self, execution: str, attempt: int) -> None:
        """Return when the conductor has every turn."""
        outbox = self._outboxes.get((execution, attempt))
        if outbox is not None and outbox.task is not None:
            await asyncio.shield(outbox.task)

    def stop(self) -> None:
        for outbox in self._outboxes.values():
            if outbox.task is not None:
                outbox.task.cancel()

    async def _empty(self, key: tuple[str, int], outbox: _Outbox) -> None:
        pause = FIRST_RETRY_SECONDS
        while outbox.turns:
            batch = outbox.turns[:BATCH]
            try:
                await self._conductor.turns(Turns(key[0], key[1], tuple(batch)))
            except Unreachable as cause:
                if pause == FIRST_RETRY_SECONDS:
                    log.warning("the conductor does not take turns, trying on", execution=key[0], attempt=key[1], reason=str(cause))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                continue
            except (Refused, Rejected) as cause:
                log.error("the conductor does not want these turns", execution=key[0], attempt=key[1], turns=len(batch), reason=str(cause))
            pause = FIRST_RETRY_SECONDS
            del outbox.turns[: len(batch)]
            self._acknowledged([turn.id for turn in batch])
        del self._outboxes[key]

"""The work queue: jobs by key, each at most once in it and at most once in work, put off longer and longer while it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

FIRST_BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS = 0.5, 60.0


@dataclass(slots=True)
class Schedule[K: Hashable]:
    """When each key is due. Pure: time comes in as an argument."""

    due: dict[K, float] = field(default_factory=dict)
    busy: set[K] = field(default_factory=set)
    failures: dict[K, int] = field(default_factory=dict)

    def add(self, key: K, at: float) -> None:
        """Due at that time or earlier. One that is in work becomes due again after it."""
        self.due[key] = min(at, self.due.get(key, at))

    def take(self, now: float) -> K | None:
        """The key that waits longest, or None; it is in work until `done` or `failed`."""
        ready = [(at, key) for key, at in self.due.items() if at <= now and key not in self.busy]
        if not ready:
            return None
        _, key = min(ready, key=lambda pair: pair[0])
        del self.due[key]
        self.busy.add(key)
        return key

    def done(self, key: K) -> None:
        self.busy.discard(key)
        self.failures.pop(key, None)

    def failed(self, key: K, now: float, at_least_seconds: float = 0.0, at_most_seconds: float = LONGEST_BACK_OFF_SECONDS) -> float:
        """Put off: what else asks for the key meanwhile does not bring it forward, or a broken job would spin. Returns the pause."""
        self.busy.discard(key)
        times = self.failures.get(key, 0)
        self.failures[key] = times + 1
        pause = max(at_least_seconds, min(at_most_seconds, FIRST_BACK_OFF_SECONDS * 2.0**times))
        self.due[key] = now + pause
        return pause

    def next_at(self) -> float | None:
        return min((at for key, at in self.due.items() if key not in self.busy), default=None)

    def overdue_seconds(self, now: float) -> float:
        """How long the longest waiting key has been due."""
        waits: list[float] = [now - at for at in self.due.values()]
        return max(waits, default=0.0)

    def waiting(self, now: float) -> int:
        return sum(at <= now for at in self.due.values())


class WorkQueue[K: Hashable]:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.schedule: Schedule[K] = Schedule()
        self._clock = clock
        self._changed = asyncio.Event()

    def add(self, key: K, after_seconds: float = 0.0) -> None:
        if key in self.schedule.failures and key in self.schedule.due:
            return  # it is put off
        self.schedule.add(key, self._clock() + after_seconds)
        self._changed.set()

    async def run(self, work: Callable[[K], Awaitable[None]], on_failure: Callable[[K, Exception], tuple[float, float]], workers: int) -> None:
        """Until cancelled. `on_failure` answers for how many seconds the key is put off at least and at most."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work, on_failure))

    async def _worker(self, work: Callable[[K], Awaitable[None]], on_failure: Callable[[K, Exception], tuple[float, float]]) -> None:
        while True:
            key = await self._next()
            try:
                await work(key)
            except Exception as failure:  # whatever one job's pass runs into, the others go on
                self.schedule.failed(key, self._clock(), *on_failure(key, failure))
            else:
                self.schedule.done(key)
            self._changed.set()

    async def _next(self) -> K:
        while True:
            key = self.schedule.take(self._clock())
            if key is not None:
                return key
            self._changed.clear()
            at = self.schedule.next_at()
            timeout = None if at is None else max(0.0, at - self._clock())
            try:
                await asyncio.wait_for(self._changed.wait(), timeout)
            except TimeoutError:
                continue

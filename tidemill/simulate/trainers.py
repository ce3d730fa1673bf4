"""The cells in training: micro-steps leased one at a time from one queue, and the core's optimizer update."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Trainers:
    """Work is told in seconds of one cell."""

    queue: deque[float] = field(default_factory=deque)
    queued_seconds: float = 0.0
    leased: int = 0
    idle: dict[int, None] = field(default_factory=dict)  # in training, nothing in hand; in the order in which they became idle
    busy: set[int] = field(default_factory=set)
    computed: dict[int, int] = field(default_factory=dict)  # micro-steps by cell, since the step began
    busy_seconds: float = 0.0

    @property
    def done(self) -> bool:
        """Everything that was handed in is computed."""
        return not self.queue and not self.leased

    def add(self, micro_steps: Iterable[float]) -> None:
        for seconds in micro_steps:
            self.queue.append(seconds)
            self.queued_seconds += seconds

    def join(self, cell: int) -> None:
        self.idle[cell] = None

    def leave(self, cell: int) -> None:
        """Only an idle cell leaves: one that computes finishes first."""
        self.idle.pop(cell, None)

    def lease(self) -> Iterator[tuple[int, float]]:
        """Cells that begin a micro-step now, and how long it takes."""
        while self.queue and self.idle:
            cell = next(iter(self.idle))
            del self.idle[cell]
            seconds = self.queue.popleft()
            self.queued_seconds -= seconds
            self.leased += 1
            self.busy.add(cell)
            self.busy_seconds += seconds
            yield cell, seconds

    def finish(self, cell: int) -> None:
        self.leased -= 1
        self.busy.discard(cell)
        self.idle[cell] = None
        self.computed[cell] = self.computed.get(cell, 0) + 1

    def commit(self) -> dict[int, int]:
        done, self.computed = self.computed, {}
        return done

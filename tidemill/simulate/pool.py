"""The cells in rollout as one pool: who runs, how fast, and who ends next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(slots=True, eq=False)
class Execution:
    group: int
    place: int
    seconds: float  # undisturbed
    tokens: float
    started: float = -1.0
    gone: bool = False  # dropped while it ran


class Pool:
    """Executions are spread evenly, so all go equally fast, and one clock of undisturbed time serves them all: an execution that
    starts when it shows v ends when it shows v + its seconds. Deadlines are in real time.
    """

    def __init__(self, progress: Callable[[float], float]) -> None:
        self._progress = progress  # speed by load
        self._now = 0.0
        self._clock = 0.0  # undisturbed seconds
        self._rate = 1.0
        self._ends: list[tuple[float, int, Execution]] = []
        self._deadlines: list[tuple[float, int, Execution]] = []
        self._number = 0
        self.capacity = 0
        self.running = 0
        self.served = 0.0  # places in use, times seconds
        self.offered = 0.0  # places, times seconds

    def start(self, execution: Execution, deadline: float) -> None:
        self._number += 1
        self.running += 1
        execution.started = self._now
        heappush(self._ends, (self._clock + execution.seconds, self._number, execution))
        if deadline < math.inf:
            heappush(self._deadlines, (deadline, self._number, execution))

    def drop(self, execution: Execution) -> None:
        execution.gone = True
        self.running -= 1

    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity

    def settle(self) -> None:
        """The speed, after everything that happened at this moment."""
        load = self.running / self.capacity if self.capacity else math.inf
        self._rate = self._progress(load) if self.running and self.capacity else float(self.capacity > 0)

    def advance(self, now: float) -> None:
        passed = now - self._now
        if passed > 0:
            self._clock += passed * self._rate
            self.served += passed * min(self.running, self.capacity)
            self.offered += passed * self.capacity
            self._now = now

    def next_end(self) -> float:
        """When the next execution ends or runs out of time, if nothing changes."""
        self._forget_the_gone()
        end = math.inf
        if self._ends and self._rate > 0:
            end = self._now + max(0.0, (self._ends[0][0] - self._clock) / self._rate)
        return min(end, self._deadlines[0][0]) if self._deadlines else end

    def ended(self) -> Iterator[tuple[Execution, bool]]:
        """Those that end now, and whether a deadline ended them."""
        self._forget_the_gone()
        slack = 1e-9 * max(1.0, self._now)
        while self._ends and self._ends[0][0] <= self._clock + slack:
            yield self._end(heappop(self._ends)[2]), False
            self._forget_the_gone()
        while self._deadlines and self._deadlines[0][0] <= self._now:
            yield self._end(heappop(self._deadlines)[2]), True
            self._forget_the_gone()

    def _end(self, execution: Execution) -> Execution:
        execution.gone = True
        self.running -= 1
        return execution

    def _forget_the_gone(self) -> None:
        while self._ends and self._ends[0][2].gone:
            heappop(self._ends)
        while self._deadlines and self._deadlines[0][2].gone:
            heappop(self._deadlines)

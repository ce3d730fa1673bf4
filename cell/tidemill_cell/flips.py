"""The record of a flip while it happens: its phases, timed one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tidemill.wire.cell import Flip, Role
from tidemill_cell.roles import Phase


@dataclass(slots=True)
class FlipUnderWay:
    to: Role
    epoch: int
    started: float = field(default_factory=time.time)
    phases: dict[str, float] = field(default_factory=dict)
    calls_in_flight: int = 0
    _started_at: float = field(default_factory=time.perf_counter)

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Attempts and repetitions of a phase add up."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - begin

    def ended(self, cell: str) -> Flip:
        seconds = time.perf_counter() - self._started_at
        phases = {str(phase): seconds for phase, seconds in self.phases.items()}
        return Flip(cell, self.to, self.epoch, self.started, seconds, phases, self.calls_in_flight)

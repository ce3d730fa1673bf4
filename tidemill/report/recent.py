"""What a job did in its last minutes, as rows of equal columns, for people who watch it in a terminal: from its events, or from what was seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Protocol

from tidemill.telemetry.events import AnyEvent, FlipEnded, JobEnded, JobStarted, RoleAcknowledged, StepCommitted, TideRead
from tidemill.telemetry.roles import RoleSpan, role_spans
from tidemill.wire.cell import Role

WINDOW_SECONDS = 900.0
COLUMNS = 60
FLIPS = 4


class Flip(Protocol):
    """As an event tells of it, or the status of a job on a cluster."""

    @property
    def cell(self) -> str: ...
    @property
    def to(self) -> Role: ...
    @property
    def seconds(self) -> float: ...
    @property
    def phases(self) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class Strips:
    """The oldest column first. None and "": nothing is known of that time."""

    seconds: float  # that they show
    roles: dict[str, tuple[str, ...]]  # by cell
    waterlevel: tuple[int | None, ...]
    capacity: tuple[int | None, ...]
    scores: tuple[float | None, ...]  # one a step, the last ones
    flips: tuple[Flip, ...]  # the newest first
    statistics: dict[str, float] = field(default_factory=dict)  # of the last step


@dataclass(slots=True)
class Recent:
    """Takes events in their order."""

    started: float = 0.0
    ended: float | None = None
    cells: tuple[str, ...] = ()
    _roles: list[AnyEvent] = field(default_factory=list)
    _tides: deque[TideRead] = field(default_factory=deque)
    _steps: list[StepCommitted] = field(default_factory=list)
    _flips: deque[FlipEnded] = field(default_factory=lambda: deque(maxlen=FLIPS))

    def take(self, event: AnyEvent) -> None:
        match event:
            case JobStarted():
                self.started, self.ended, self.cells = self.started or event.time, None, event.cells
                self._roles.append(event)
            case RoleAcknowledged() | FlipEnded():
                self._roles.append(event)
                if isinstance(event, FlipEnded):
                    self._flips.append(event)
            case JobEnded():
                self.ended = event.time
                self._roles.append(event)
            case TideRead():
                self._tides.append(event)
                while len(self._tides) > 1 and self._tides[1].time < event.time - WINDOW_SECONDS:
                    self._tides.popleft()
            case StepCommitted():
                self._steps.append(event)
            case _:
                pass

    def strips(self, now: float) -> Strips:
        until = now if self.ended is None else self.ended
        seconds = min(WINDOW_SECONDS, max(until - self.started, 1.0))
        edges = [until - seconds + seconds * n / COLUMNS for n in range(COLUMNS + 1)]
        spans = role_spans(self._roles, until)
        tides = [_last_before(self._tides, edge) for edge in edges[1:]]
        return Strips(
            seconds=seconds,
            roles={cell: roles([span for span in spans if span.cell == cell], edges) for cell in self.cells},
            waterlevel=tuple(None if tide is None else tide.dispatched - tide.terminated for tide in tides),
            capacity=tuple(None if tide is None else tide.rollout_capacity for tide in tides),
            scores=tuple(step.mean_score for step in self._steps[-COLUMNS:]),
            flips=tuple(reversed(self._flips)),
            statistics=self._steps[-1].statistics if self._steps else {},
        )


@dataclass(slots=True)
class Sightings:
    """Takes readings as they come, and remembers the last minutes of them: what is known of a job on a cluster without asking its processes."""

    _seen: deque[Sighting] = field(default_factory=deque)

    def take(self, sighting: Sighting) -> None:
        self._seen.append(sighting)
        while len(self._seen) > 1 and self._seen[1].time < sighting.time - WINDOW_SECONDS:
            self._seen.popleft()

    def strips(self, flips: Sequence[Flip]) -> Strips:
        """Since the first reading that is remembered."""
        first, last = self._seen[0], self._seen[-1]
        seconds = max(last.time - first.time, 1.0)
        edges = [last.time - seconds + seconds * n / COLUMNS for n in range(1, COLUMNS + 1)]
        columns = [next((s for s in reversed(self._seen) if s.time <= edge), None) for edge in edges]
        scores = [score for score, _ in groupby(s.score for s in self._seen)]
        return Strips(
            seconds=seconds,
            roles={cell: tuple("" if s is None else s.roles.get(cell, "") for s in columns) for cell in last.roles},
            waterlevel=tuple(None if s is None else s.waterlevel for s in columns),
            capacity=tuple(None if s is None else s.capacity for s in columns),
            scores=tuple(scores[-COLUMNS:]),
            flips=tuple(reversed(flips))[:FLIPS],
        )


@dataclass(frozen=True, slots=True)
class Sighting:
    time: float
    roles: dict[str, str]  # cell -> what it did
    waterlevel: int
    capacity: int
    score: float | None


def roles(spans: Sequence[RoleSpan], edges: Sequence[float]) -> tuple[str, ...]:
    """For each column what took most of it."""
    found = []
    for left, right in pairwise(edges):
        shares: dict[str, float] = {}
        for span in spans:
            overlap = min(span.end, right) - max(span.start, left)
            if overlap > 0:
                shares[span.role] = shares.get(span.role, 0.0) + overlap
        found.append(max(shares, key=lambda role: shares[role]) if shares else "")
    return tuple(found)


def _last_before(tides: Sequence[TideRead], moment: float) -> TideRead | None:
    return next((tide for tide in reversed(tides) if tide.time <= moment), None)

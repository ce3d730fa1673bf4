"""Who was in which role when, from a job's events: what the timeline draws and the summary adds up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.telemetry.events import AnyEvent, FlipEnded, JobEnded, JobStarted, RoleAcknowledged

FLIPPING = "Flipping"


@dataclass(frozen=True, slots=True)
class RoleSpan:
    cell: str
    role: str  # "Rollout" | "Training" | "Flipping"
    start: float  # unix seconds
    end: float


def role_spans(events: Iterable[AnyEvent], now: float) -> tuple[RoleSpan, ...]:
    """Spans of every cell, in order of their ends. A flip takes its last seconds from the span before; while a job is stopped nobody has a role."""
    spans: list[RoleSpan] = []
    current: dict[str, tuple[str, float]] = {}
    last = now
    ended = False
    for event in events:
        if isinstance(event, JobStarted):
            spans += [RoleSpan(cell, role, start, last) for cell, (role, start) in current.items() if last > start]
            current = {}
        elif isinstance(event, RoleAcknowledged):
            if event.cell in current:
                role, start = current[event.cell]
                spans.append(RoleSpan(event.cell, role, start, event.time))
            current[event.cell] = (event.role.value, event.time)
        elif isinstance(event, FlipEnded):
            spans = _cut(spans, event.cell, event.time - event.seconds, event.time)
            role, since = current.get(event.cell, ("", 0.0))
            if since > event.time - event.seconds:
                since = min(since, event.time)  # the role is told of later than it begins: by the way to the conductor, and its disk
                spans.append(RoleSpan(event.cell, FLIPPING, event.time - event.seconds, since))
                current[event.cell] = (role, since)
        ended = isinstance(event, JobEnded)
        last = event.time
    until = last if ended else max(last, now)
    spans += [RoleSpan(cell, role, start, until) for cell, (role, start) in current.items() if until > start]
    return tuple(spans)


def _cut(spans: list[RoleSpan], cell: str, start: float, end: float) -> list[RoleSpan]:
    """Take [start, end] out of the cell's last span."""
    kept = []
    for span in spans:
        if span.cell == cell and span.end > start and span.start < end:
            if span.start < start:
                kept.append(RoleSpan(cell, span.role, span.start, start))
        else:
            kept.append(span)
    return kept

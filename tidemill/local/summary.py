"""What a job did, as one JSON object: computed from its events and the gateway's counters, never from logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from tidemill.telemetry.events import (
    AnyEvent,
    EvaluationEnded,
    ExecutionEnded,
    FlipEnded,
    GroupDropped,
    JobEnded,
    JobStarted,
    StepCommitted,
    TideRead,
    VersionPublished,
)
from tidemill.telemetry.roles import role_spans
from tidemill.wire.cell import Role
from tidemill.wire.gateway import GatewayState


class FlipSummary(msgspec.Struct, frozen=True, rename="camel"):
    cell: str
    to: str
    seconds: float
    phases: dict[str, float]
    calls_in_flight: int


class ExecutionSummary(msgspec.Struct, frozen=True, rename="camel"):
    started: int
    finished: int
    dropped: dict[str, int]  # by reason
    lost: int  # started, but neither finished nor dropped; 0 once a job has ended


class Summary(msgspec.Struct, frozen=True, rename="camel"):
    steps: int
    scores: tuple[float | None, ...]  # mean of each step
    evaluation: dict[str, float]  # policy version -> mean score on held-out tasks
    flips: tuple[FlipSummary, ...]
    executions: ExecutionSummary
    groups_dropped: dict[str, int]  # not trained, by reason
    resubmitted_calls: int
    recomputed_tokens: int
    staleness_max: int
    hours_by_role: dict[str, float]
    weight_checksums: dict[str, str]  # policy version -> digest
    wall_seconds: float
    phase: str
    reason: str = ""  # why it failed

    @property
    def answers_moved(self) -> int:
        """While they were written, when their cell left rollout. `resubmitted_calls` is what the gateway did for it, since it last started."""
        return sum(flip.calls_in_flight for flip in self.flips if flip.to == Role.TRAINING)


def summarize(events: Iterable[AnyEvent], gateway: GatewayState | None, now: float, trouble: str = "") -> Summary:
    """Sum up a job. Events that a restart wrote twice count once; time during which the job was stopped counts for nothing.

    `trouble`: why the runner gave up. The job has not ended then: it can be resumed.
    """
    everything = list(events)
    steps = {e.step: e for e in everything if isinstance(e, StepCommitted)}
    ended = {e.execution: e for e in everything if isinstance(e, ExecutionEnded)}
    flips = {(e.cell, e.epoch): e for e in everything if isinstance(e, FlipEnded)}
    last_tide = next((e for e in reversed(everything) if isinstance(e, TideRead)), None)
    dropped = dict(Counter(e.dropped for e in ended.values() if e.dropped))
    finished = sum(1 for e in ended.values() if not e.dropped)
    started = last_tide.started if last_tide else 0
    end = next((e for e in reversed(everything) if isinstance(e, JobEnded)), None)
    hours: dict[str, float] = {}
    for span in role_spans(everything, now):
        hours[span.role] = hours.get(span.role, 0.0) + (span.end - span.start) / 3600
    return Summary(
        steps=max(steps, default=0),
        scores=tuple(steps[s].mean_score for s in sorted(steps)),
        evaluation={str(e.version): e.mean_score for e in everything if isinstance(e, EvaluationEnded)},
        flips=tuple(FlipSummary(f.cell, f.to, f.seconds, f.phases, f.calls_in_flight) for f in flips.values()),
        executions=ExecutionSummary(started, finished, dropped, started - finished - sum(dropped.values())),
        groups_dropped=dict(Counter(e.reason for e in {g.group: g for g in everything if isinstance(g, GroupDropped)}.values())),
        resubmitted_calls=gateway.resubmitted_calls if gateway else 0,
        recomputed_tokens=gateway.recomputed_tokens if gateway else 0,
        staleness_max=max((e.staleness for e in steps.values()), default=0),
        hours_by_role=hours,
        weight_checksums={str(e.version): e.digest for e in everything if isinstance(e, VersionPublished)},
        wall_seconds=sum(end - start for start, end in run_spans(everything, now)),
        phase=end.phase if end and not trouble else "Failed" if trouble else "Stopped",
        reason=trouble or (end.reason if end else ""),
    )


def run_spans(events: Iterable[AnyEvent], now: float) -> list[tuple[float, float]]:
    """From each start or resume to the last event before the next one (or to `now`, for the run that goes on)."""
    spans: list[tuple[float, float]] = []
    last = now
    for event in events:
        if isinstance(event, JobStarted):
            if spans:
                spans[-1] = (spans[-1][0], last)
            spans.append((event.time, event.time))
        last = event.time
    if spans:
        spans[-1] = (spans[-1][0], max(last, now))
    return spans

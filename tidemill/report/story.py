"""A job's events, arranged as the report tells them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.report.chart import Mark, Points, Span
from tidemill.telemetry.events import (
    AnyEvent,
    ConditionChanged,
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


@dataclass(frozen=True, slots=True)
class Story:
    """Times are seconds since the job's first start."""

    job: str
    mode: str
    phase: str
    seconds: float
    cells: tuple[str, ...]
    cores_shared: bool
    spans: tuple[Span, ...]
    publications: tuple[Mark, ...]
    waterlevel: Points
    capacity: Points
    steps: tuple[StepCommitted, ...]
    steps_wanted: int
    evaluations: tuple[EvaluationEnded, ...]
    executions: tuple[ExecutionEnded, ...]
    flips: tuple[tuple[float, FlipEnded], ...]
    dropped_groups: tuple[tuple[float, GroupDropped], ...]
    conditions: tuple[tuple[float, ConditionChanged], ...]
    resumes: int

    @property
    def scores(self) -> tuple[float | None, ...]:
        return tuple(s.mean_score for s in self.steps)

    @property
    def answers_moved(self) -> int:
        """While they were written, when their cell left rollout."""
        return sum(flip.calls_in_flight for _, flip in self.flips if flip.to is Role.TRAINING)

    def share(self, cell: str, kind: str) -> float:
        """Part of the job's time that a cell spent in a role."""
        return sum(s.end - s.start for s in self.spans if s.row == cell and s.kind == kind) / max(self.seconds, 1e-9)

    def quarters(self) -> tuple[float, float] | None:
        """Mean score of the first and of the last quarter of the steps."""
        known = [s for s in self.scores if s is not None]
        if not known:
            return None
        n = max(1, len(known) // 4)
        return sum(known[:n]) / n, sum(known[-n:]) / n


def tell(events: Sequence[AnyEvent], now: float) -> Story | None:
    """None when the job has not started."""
    starts = [e for e in events if isinstance(e, JobStarted)]
    if not starts:
        return None
    zero, first = starts[0].time, starts[0]
    end = next((e for e in reversed(events) if isinstance(e, JobEnded)), None)
    until = end.time if end else max(now, events[-1].time)
    tides = [e for e in events if isinstance(e, TideRead)]
    return Story(
        job=first.job,
        mode=first.mode,
        phase=end.phase if end else "Running or stopped",
        seconds=until - zero,
        cells=first.cells,
        cores_shared=any(s.cores_shared for s in starts),
        spans=tuple(_span(s.cell, s.role, s.start - zero, s.end - zero) for s in role_spans(events, until)),
        publications=tuple(
            Mark(e.time - zero, f"version {e.version} published after step {e.step}") for e in events if isinstance(e, VersionPublished)
        ),
        waterlevel=[(e.time - zero, float(e.dispatched - e.terminated)) for e in tides],
        capacity=[(e.time - zero, float(e.rollout_capacity)) for e in tides],
        steps=tuple({e.step: e for e in events if isinstance(e, StepCommitted)}.values()),
        steps_wanted=first.steps,
        evaluations=tuple(e for e in events if isinstance(e, EvaluationEnded)),
        executions=tuple({e.execution: e for e in events if isinstance(e, ExecutionEnded)}.values()),
        flips=tuple({(e.cell, e.epoch): (e.time - zero, e) for e in events if isinstance(e, FlipEnded)}.values()),
        dropped_groups=tuple((e.time - zero, e) for e in events if isinstance(e, GroupDropped)),
        conditions=tuple((e.time - zero, e) for e in events if isinstance(e, ConditionChanged)),
        resumes=len(starts) - 1,
    )


def _span(cell: str, role: str, start: float, end: float) -> Span:
    return Span(cell, role, start, end, f"{cell}: {role}, {end - start:.1f} s from {start:.0f} s")

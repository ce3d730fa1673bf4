"""What a simulation found."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.telemetry.events import AnyEvent


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of the job, for comparing it with another job's."""

    time: float
    kind: str  # dispatch, train, return, stay, commit, publish
    what: str


@dataclass(frozen=True, slots=True)
class Result:
    seconds: float
    steps_done: int
    cell_seconds: float  # standalone ones included
    rollout_utilization: float  # places in use of those offered
    training_utilization: float  # of the time in training
    idle_seconds: float  # of one cell: empty places, waiting trainers, and flips
    flips: int
    staleness_max: int  # publications
    staleness_mean: float  # over trained groups
    staleness_updates_max: int
    staleness_updates_mean: float
    dropped_groups: int
    executions: int
    training_cells_max: int
    decisions: tuple[Decision, ...] = ()
    events: tuple[AnyEvent, ...] = field(default=(), repr=False)

    @property
    def hours(self) -> float:
        return self.seconds / 3600

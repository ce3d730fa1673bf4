"""What a simulation found."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.simulate.view import View
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


def ended(job: View, decisions: tuple[Decision, ...], events: tuple[AnyEvent, ...]) -> Result:
    """What a job found that has just come to its end."""
    how, stale = job.setup, job.stale
    training = sum(c.training_seconds + (0.0 if c.in_rollout else job.now - c.since) for c in job.cells)
    used = job.trainers.busy_seconds + job.core_seconds
    everything = job.now * (how.cells + how.standalone)
    groups = max(1, sum(stale.values()))
    return Result(
        seconds=job.now,
        steps_done=job.committed,
        cell_seconds=everything,
        rollout_utilization=job.pool.served / job.pool.offered if job.pool.offered else 0.0,
        training_utilization=used / training if training else 0.0,
        idle_seconds=everything - used - job.pool.served / how.capacity,
        flips=job.flips,
        staleness_max=max((p for p, _ in stale), default=0),
        staleness_mean=sum(p * n for (p, _), n in stale.items()) / groups,
        staleness_updates_max=max((u for _, u in stale), default=0),
        staleness_updates_mean=sum(u * n for (_, u), n in stale.items()) / groups,
        dropped_groups=job.groups_dropped,
        executions=job.terminated,
        training_cells_max=job.training_cells_max,
        decisions=decisions,
        events=events,
    )

"""What of an RLJob a simulation needs, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.api import RLJob
from tidemill.api.rljob import Dispatch, OnGroupTimeout, OnStale
from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import Extension
from tidemill.policy.staleness import default_bound


@dataclass(frozen=True, slots=True)
class Setup:
    mode: Mode
    plan: Plan
    rollouts_per_group: int  # N
    cells: int  # that change role; cell 0 is the core
    capacity: int  # C_e
    standalone: int = 0
    streaming: bool = True
    async_training_cells: int = 1
    max_staleness: int | None = None  # None: what boundary dispatch keeps by itself
    drop_stale: bool = False
    refill: bool = False
    extensions: frozenset[Extension] = frozenset()
    execution_seconds: float = float("inf")
    group_seconds: float = float("inf")
    drop_at_group_timeout: bool = False

    @property
    def bound(self) -> int:
        if self.max_staleness is not None:
            return self.max_staleness
        return default_bound(self.plan.prefetch_steps, self.plan.steps_per_burst)

    @property
    def groups_per_burst(self) -> int:
        return self.plan.groups_per_step * self.plan.steps_per_burst

    @property
    def groups(self) -> int:
        """That the job trains when nothing is dropped."""
        return self.plan.groups_per_step * self.plan.steps

    @property
    def splits(self) -> range:
        """Numbers of training cells that mode Async can have: somebody has to serve."""
        return range(1, self.cells + bool(self.standalone))


def setup_of(job: RLJob) -> Setup:
    spec, schedule = job.spec, job.spec.schedule
    return Setup(
        mode=schedule.mode,
        plan=Plan(schedule.groups_per_step, schedule.steps_per_burst, schedule.prefetch_steps, schedule.steps),
        rollouts_per_group=schedule.rollouts_per_group,
        cells=spec.cells.count,
        capacity=spec.cells.capacity,
        standalone=spec.cells.standalone.replicas,
        streaming=schedule.streaming,
        async_training_cells=schedule.async_training_cells,
        max_staleness=schedule.max_staleness,
        drop_stale=schedule.on_stale is OnStale.DROP,
        refill=schedule.dispatch is Dispatch.REFILL,
        extensions=frozenset(schedule.extensions),
        execution_seconds=spec.timeouts.execution_seconds,
        group_seconds=spec.timeouts.group_seconds,
        drop_at_group_timeout=spec.timeouts.on_group_timeout is OnGroupTimeout.DROP,
    )

"""What the conductor needs of an RLJob, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.api import RLJob
from tidemill.api.not_yet import not_yet
from tidemill.api.rljob import Dispatch, OnGroupTimeout, OnStale
from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import Extension, Rules
from tidemill.policy.staleness import default_bound
from tidemill.wire.engine import Sampling


@dataclass(frozen=True, slots=True)
class Settings:
    job: str
    mode: Mode
    plan: Plan
    rollouts_per_group: int  # N
    streaming: bool
    async_training_cells: int
    max_staleness: int
    drop_stale: bool
    cells: int  # that change role; cell 0 is the core
    standalone: int
    capacity: int  # C_e, until an agent reports its own
    harness: str
    sampling: Sampling
    call_seconds: float
    execution_seconds: float
    group_seconds: float
    drop_at_group_timeout: bool
    most_paths: int  # J_max
    seed: int
    executions_per_held_out_task: int  # 0: nothing is held out
    refill: bool = False
    extensions: frozenset[Extension] = frozenset()
    skip_equal_groups: bool = False

    @property
    def rules(self) -> Rules:
        return Rules(self.mode, self.async_training_cells, self.extensions)

    @property
    def executions_per_step(self) -> int:
        """B * N, the loss normaliser."""
        return self.plan.groups_per_step * self.rollouts_per_group

    @property
    def groups_per_burst(self) -> int:
        return self.plan.groups_per_step * self.plan.steps_per_burst


def settings_of(job: RLJob) -> Settings:
    """Raises `ValueError` for what no real job can have yet: a runner or an operator has refused it before."""
    spec = job.spec
    if refused := tuple(not_yet(spec)):
        raise ValueError(f"rljob {job.metadata.name}: {'; '.join(map(str, refused))}")
    schedule = spec.schedule
    bound = schedule.max_staleness
    return Settings(
        job=job.metadata.name,
        mode=schedule.mode,
        plan=Plan(schedule.groups_per_step, schedule.steps_per_burst, schedule.prefetch_steps, schedule.steps),
        rollouts_per_group=schedule.rollouts_per_group,
        streaming=schedule.streaming,
        async_training_cells=schedule.async_training_cells,
        max_staleness=default_bound(schedule.prefetch_steps, schedule.steps_per_burst) if bound is None else bound,
        drop_stale=schedule.on_stale is OnStale.DROP,
        cells=spec.cells.count,
        standalone=spec.cells.standalone.replicas,
        capacity=spec.cells.capacity,
        harness=spec.harness.preset,
        sampling=Sampling(max_tokens=spec.sampling.max_tokens, temperature=spec.sampling.temperature, top_p=spec.sampling.top_p),
        call_seconds=spec.timeouts.call_seconds,
        execution_seconds=spec.timeouts.execution_seconds,
        group_seconds=spec.timeouts.group_seconds,
        drop_at_group_timeout=spec.timeouts.on_group_timeout is OnGroupTimeout.DROP,
        most_paths=spec.trajectories.max_per_execution,
        seed=spec.tasks.seed,
        executions_per_held_out_task=spec.evaluation.executions_per_task if spec.evaluation.source else 0,
        refill=schedule.dispatch is Dispatch.REFILL,
        extensions=frozenset(schedule.extensions),
        skip_equal_groups=spec.algorithm.skip_equal_groups,
    )

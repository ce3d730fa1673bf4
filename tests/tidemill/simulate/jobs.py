"""Small jobs, and a watch that checks what must hold at every moment of a simulation."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.simulate.costs import Costs
from tidemill.simulate.job import Job
from tidemill.simulate.recorder import Silent
from tidemill.simulate.setup import Setup
from tidemill.simulate.state import Group
from tidemill.simulate.traces import GroupTrace, Trace

COSTS = Costs(
    train_tokens_per_second=10.0, optimizer_step_seconds=2.0, publish_seconds=1.0, flip_to_training_seconds=3.0, flip_to_rollout_seconds=2.0
)


def setup(**changes: Any) -> Setup:
    usual = Setup(Mode.ELASTIC, Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=1, steps=6), rollouts_per_group=2, cells=3, capacity=4)
    return replace(usual, **changes)


def even(groups: int, size: int = 2, seconds: float = 10.0, tokens: float = 10.0) -> Trace:
    return Trace(tuple(GroupTrace((seconds,) * size, (tokens,) * size) for _ in range(groups)))


@st.composite
def random_jobs(draw: st.DrawFn) -> tuple[Setup, Trace, Costs]:
    """Executions that end in any order: what follows from it, flips and steps, comes in any order too."""
    random = Random(draw(st.integers(0, 2**32)))
    mu, groups, size = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(2, 3))
    plan = Plan(groups, mu, draw(st.integers(0, 4)), draw(st.integers(1, 7)))
    standalone = draw(st.integers(0, 1))
    how = Setup(Mode.ELASTIC, plan, size, draw(st.integers(1 if standalone else 2, 5)), draw(st.integers(1, 9)), standalone, draw(st.booleans()))
    trace = Trace(
        tuple(
            GroupTrace(
                tuple(random.choice((0.0, 1.0, random.expovariate(0.05))) for _ in range(size)), tuple(random.uniform(0, 50) for _ in range(size))
            )
            for _ in range(how.groups)
        )
    )
    update, publish, to_training, to_rollout = (random.choice((0.0, random.uniform(0, 30))) for _ in range(4))
    costs = Costs(10 ** random.uniform(-1, 2), update, publish, to_training, to_rollout)
    return how, trace, costs


class Watch(Silent):
    """Raises when a simulation breaks what the published rule promises."""

    def __init__(self, published_rule: bool = True) -> None:
        self._published_rule = published_rule
        self._level: tuple[int, int] = (0, 0)  # burst, waterlevel
        self.flips = 0

    def dispatched(self, job: Job, group: Group) -> None:
        waiting = len(job.open) + len(job.ready)
        assert waiting <= (1 + job.setup.bound) * job.setup.groups_per_burst, "more waits than can be trained within the bound"

    def taken(self, job: Job, group: Group) -> None:
        assert job.version - group.version <= job.setup.bound, "a sample is too stale"

    def granted(self, job: Job, cell: int, to_training: bool) -> None:
        self.flips += 1
        if to_training and self._published_rule:
            left = sum(c.in_rollout for c in job.cells) * job.setup.capacity + job.setup.standalone * job.setup.capacity
            assert job.dispatched - job.terminated <= left, "a cell left although the others cannot serve what is unfinished"

    def passed(self, job: Job) -> None:
        roles = [c.in_rollout for c in job.cells]
        assert roles == sorted(roles), "the training cells are a prefix of the order"
        assert job.pool.running + len(job.pending) == job.dispatched - job.terminated
        if self._published_rule and not job.setup.refill and job.burst is not None:
            burst, level = self._level
            now = job.dispatched - job.terminated
            assert burst != job.bursts or now <= level, "the waterlevel rose inside a burst"
            self._level = job.bursts, now

"""A time that no schedule can be faster than, clairvoyant or not, when nothing is dropped and no sample is staler than the bound.

The proof is in docs/scheduling.md. R[v] below is the earliest time at which version v can have been published.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tidemill.policy.burst import steps_in_burst
from tidemill.policy.extensions import Extension
from tidemill.simulate.costs import Costs
from tidemill.simulate.prospects import MOST_LOAD
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import Trace

Figures = NDArray[np.float64]


def makespan_bound(setup: Setup, trace: Trace, costs: Costs) -> float:
    """Seconds."""
    plan = setup.plan
    groups = [trace.group(n) for n in range(setup.groups)]
    longest = min(setup.execution_seconds, setup.group_seconds)
    seconds = np.array([g.seconds for g in groups])
    kept = np.divide(np.minimum(seconds, longest), seconds, out=np.ones_like(seconds), where=seconds > 0)
    ends = np.minimum(seconds, longest).max(axis=1)
    serving = np.minimum(seconds, longest).sum(axis=1) / (setup.capacity * _peak(setup, costs))  # seconds of one cell
    training = (np.array([g.tokens for g in groups]) * kept).sum(axis=1) / costs.train_tokens_per_second

    earliest = [0.0]
    first_steps = list(range(0, plan.steps, plan.steps_per_burst))
    before = [_dispatched_before(setup, u) for u in range(len(first_steps) + 1)]
    for v, first_step in enumerate(first_steps):
        trained = (first_step + steps_in_burst(plan, first_step)) * plan.groups_per_step
        candidates = []
        for u in range(v + 1):
            window = _Window(ends[: before[v + 1]], serving[: before[v + 1]], training[: before[v + 1]], before[u])
            candidates.append(earliest[u] + window.shortest(setup, costs, trained, first_steps[u], v - u + 1))
        earliest.append(max(candidates))
    return earliest[-1]


def _dispatched_before(setup: Setup, version: int) -> int:
    """Most groups that can have been dispatched before `version` is published: all of them are trained within the bound, so by the burst that
    trains on version - 1 + bound."""
    return 0 if version == 0 else min(setup.groups, (version + setup.bound) * setup.groups_per_burst)


class _Window:
    """The groups that can have been dispatched before one publication, and those of them that were dispatched after another, earlier one."""

    def __init__(self, ends: Figures, serving: Figures, training: Figures, first: int) -> None:
        self._first = first
        self._ends = np.sort(ends[first:])
        self._serving = np.concatenate([[0.0], np.cumsum(np.sort(serving[first:]))])
        self._training = np.concatenate([[0.0], np.cumsum(np.sort(training[first:]))])
        self._any_training = np.concatenate([[0.0], np.cumsum(np.sort(training))])

    def shortest(self, setup: Setup, costs: Costs, trained: int, first_step: int, bursts: int) -> float:
        """Least seconds from the earlier publication until `trained` groups of the job are trained and `bursts` more versions are published."""
        plan, publish = setup.plan, costs.publish_seconds
        steps = trained // plan.groups_per_step - first_step
        updates = steps * costs.optimizer_step_seconds + bursts * publish
        computed = float(self._any_training[trained - first_step * plan.groups_per_step])
        own = max(0, trained - self._first)
        shortest = updates + computed / setup.cells
        everything = (float(self._serving[own]) + max(computed, float(self._training[own])) + updates) / (setup.cells + setup.standalone)
        if own:
            left = np.arange(own, 0, -1)  # of the own groups, when the first, second, ... is ready at the earliest
            after = self._training[left] / setup.cells + np.ceil(left / plan.groups_per_step) * costs.optimizer_step_seconds + publish
            shortest = max(shortest, float((self._ends[:own] + after).max()))
        return max(shortest, everything)


def _peak(setup: Setup, costs: Costs) -> float:
    """Most undisturbed seconds that one place can serve in a second."""
    most = MOST_LOAD if Extension.OVERSUBSCRIBE in setup.extensions else 1.0
    loads = {most * n / 64 for n in range(1, 65)} | {load for load, _ in costs.concurrency if 0 < load <= most}
    return max(load * costs.progress(load) for load in loads)

"""What the extensions are told of a simulated job: only what a conductor could measure or predict, never the trace."""

from __future__ import annotations

from tidemill.policy.extensions import Extension
from tidemill.policy.forecast import Forecast
from tidemill.policy.outlook import Outlook
from tidemill.simulate.costs import Costs
from tidemill.simulate.setup import Setup
from tidemill.simulate.state import Group
from tidemill.simulate.view import View

MOST_LOAD = 2.0
"""However flat a measured throughput curve looks, no more executions for each place: their memory has an end."""

PEAK = 0.98
"""Of the highest throughput that counts as highest."""

_PREDICTS = {Extension.REMAINING_WORK, Extension.TRAINING_CELLS, Extension.EARLY_RETURN}


class Prospects:
    def __init__(self, setup: Setup, costs: Costs) -> None:
        self._setup = setup
        self._costs = costs
        self._forecast = Forecast()
        self._predicts = bool(_PREDICTS & setup.extensions)
        self.peak_load = peak_load(costs)

    def ended(self, task: str, seconds: float) -> None:
        if self._predicts:
            self._forecast.note(task, seconds)

    def outlook(self, job: View) -> Outlook:
        """Flip costs are the same for every flip here, so their rolling median is the cost itself."""
        costs, how = self._costs, self._setup
        backlog = job.backlog_seconds()
        ready_in = self._ready_in(job) if self._predicts else ()
        due = job.tide().groups_due - len(job.taken)
        mean = job.trace.mean_tokens * how.rollouts_per_group / costs.train_tokens_per_second
        missing = max(0, due - len(job.ready))
        wanted = due + how.plan.groups_per_step - len(job.ready)
        return Outlook(
            pending=len(job.pending),
            ending_soon=self._ending_soon(job) if Extension.REMAINING_WORK in how.extensions else 0,
            backlog_seconds=backlog,
            due_seconds=backlog + missing * mean,
            next_ready_seconds=ready_in[0] if ready_in else 0.0,
            next_burst_seconds=0.0 if wanted <= 0 else ready_in[wanted - 1] if wanted <= len(ready_in) else float("inf"),
            flip_seconds=costs.flip_to_training_seconds,
            return_seconds=costs.flip_to_rollout_seconds,
            peak_load=self.peak_load,
            idle_cells=tuple(job.cells[n].name for n in job.trainers.idle),
        )

    def _ending_soon(self, job: View) -> int:
        flip = self._costs.flip_to_training_seconds
        number = 0
        for group in job.open.values():
            task = job.trace.group(group.number).task
            for execution in group.executions:
                if execution.started >= 0 and not execution.gone:
                    left = self._forecast.remaining_seconds(task, job.now - execution.started)
                    number += left is not None and left <= flip
        return number

    def _ready_in(self, job: View) -> tuple[float, ...]:
        """Predicted seconds until each open group is ready, soonest first. Groups that wait for places are taken to be later than all of them."""
        return tuple(sorted(self._group_ready_in(job, group) for group in job.open.values() if group.started >= 0))

    def _group_ready_in(self, job: View, group: Group) -> float:
        task = job.trace.group(group.number).task
        longest = 0.0
        for execution in group.executions:
            if not execution.gone:
                age = job.now - execution.started if execution.started >= 0 else 0.0
                longest = max(longest, self._forecast.remaining_seconds(task, age) or 0.0)
        return longest


def peak_load(costs: Costs) -> float:
    """The smallest load at which a cell does (almost) as much as it ever does, at least 1."""
    loads = [1 + n / 20 for n in range(int((MOST_LOAD - 1) * 20) + 1)]
    if not costs.concurrency:
        return MOST_LOAD  # beyond C_e a cell does as much as at C_e: nothing is lost with more
    best = max(load * costs.speed(load) for load in loads)
    return max(load for load in loads if load * costs.speed(load) >= PEAK * best)

"""A recorded local job, and its simulation under the recorded durations of executions, flips, steps and publications."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import REAL
from tidemill.simulate.costs import Costs
from tidemill.simulate.job import Job
from tidemill.simulate.pool import Execution
from tidemill.simulate.recorder import Recording
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import GroupTrace, Trace

FOLDER = Path(__file__).parent / "recordings"

TOKENS_PER_GROUP, GROUP_SECONDS, FLIP_SECONDS = 6, 2.0, 0.3  # of the fake world's run

AT_ONCE = Costs(train_tokens_per_second=1e12)  # a step's time is in its recorded commit


@dataclass(frozen=True)
class Recorded:
    """A real run of examples/tiny; seconds since its first publication."""

    document: dict[str, Any]

    @property
    def setup(self) -> Setup:
        plan = Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=1, steps=12)
        return Setup(Mode.ELASTIC, plan, rollouts_per_group=4, cells=3, capacity=8, execution_seconds=150, group_seconds=300)

    @property
    def trace(self) -> Trace:
        groups: dict[int, list[dict[str, Any]]] = {}
        for execution in self.document["executions"]:
            groups.setdefault(execution["group"], []).append(execution)
        return Trace(
            tuple(GroupTrace(tuple(e["ended"] - e["started"] for e in g), tuple(float(e["tokens"]) for e in g)) for _, g in sorted(groups.items()))
        )

    @property
    def ends(self) -> dict[tuple[int, int], float]:
        """By group from 0, and place in it."""
        return {(e["group"] - 1, int(e["id"].split("-")[1])): e["ended"] for e in self.document["executions"]}

    @property
    def costs(self) -> Costs:
        return AT_ONCE

    def flip_seconds(self, cell: str, epoch: int) -> float:
        flip = next(f for f in self.document["flips"] if (f["cell"], f["epoch"]) == (cell, epoch))
        return float(flip["settled"] - flip["began"])


def recorded(name: str) -> Recorded:
    return Recorded(json.loads((FOLDER / f"{name}.json").read_text()))


class Extended(Recorded):
    """A run of the conductor's fake world with Refill and all extensions that a real job has: see `tests/tidemill/simulate/record.py`."""

    @property
    def setup(self) -> Setup:
        plan = Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=1, steps=8)
        return Setup(Mode.ELASTIC, plan, 2, cells=3, capacity=2, max_staleness=2, refill=True, extensions=frozenset(REAL))

    @property
    def costs(self) -> Costs:
        return Costs(TOKENS_PER_GROUP / GROUP_SECONDS, flip_to_training_seconds=FLIP_SECONDS, flip_to_rollout_seconds=FLIP_SECONDS)


class Replay(Job):
    def __init__(self, what: Recorded) -> None:
        super().__init__(what.setup, what.trace, what.costs, Recording("tiny"))
        self._what = what
        self.starts: dict[tuple[int, int], float] = {}

    def served_seconds(self, execution: Execution) -> float:
        """Up to its recorded end, so that a start some milliseconds off does not shift what follows."""
        self.starts[execution.group, execution.place] = self.now
        return max(0.0, self._what.ends[execution.group, execution.place] - self.now)

    def serving_at(self, cell: int) -> float:
        return float(self._what.document["serving"][self.cells[cell].name])

    def flip_seconds(self, cell: int, to_training: bool) -> float:
        return self._what.flip_seconds(self.cells[cell].name, self.cells[cell].epoch)

    def update_seconds(self) -> float:
        return max(0.0, float(self._what.document["commits"][self.committed]) - self.now)

    def publish_seconds(self) -> float:
        return max(0.0, float(self._what.document["publications"][self.version + 1]["time"]) - self.now)

"""Hours against staleness: for each mode what prefetch, burst length, dispatch rule and split can reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidemill.policy.decide import Mode
from tidemill.policy.extensions import Extension
from tidemill.policy.staleness import default_bound
from tidemill.simulate.compare import runnable
from tidemill.simulate.costs import Costs
from tidemill.simulate.job import Job
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import Trace


@dataclass(frozen=True, slots=True)
class Point:
    mode: Mode
    prefetch_steps: int
    steps_per_burst: int
    refill: bool
    training_cells: int  # mode Async
    hours: float
    staleness_mean: float  # in optimizer updates, over trained groups
    staleness_max: int

    def __str__(self) -> str:
        split = f", {self.training_cells} training cells" if self.mode is Mode.ASYNC else ""
        dispatch = "Refill" if self.refill else "Boundary"
        return f"{self.mode}{split}: prefetchSteps {self.prefetch_steps}, stepsPerBurst {self.steps_per_burst}, dispatch {dispatch}"


def explore(
    setup: Setup,
    trace: Trace,
    costs: Costs,
    prefetch: Sequence[int] = (0, 1, 2, 3, 4, 6, 8),
    bursts: Sequence[int] = (1, 2, 4),
    modes: Iterable[Mode] = tuple(Mode),
    refill_extensions: frozenset[Extension] = frozenset({Extension.EARLY_RETURN}),
) -> tuple[Point, ...]:
    """Everything that can be set, for every mode the same. Refill gets one publication more than boundary dispatch needs, or they would be one."""
    points = []
    for mu in bursts:
        for phi in prefetch:
            for refill in (False, True):
                plan = replace(setup.plan, prefetch_steps=phi, steps_per_burst=mu)
                bound = default_bound(phi, mu) + refill
                on = setup.extensions | (refill_extensions if refill else frozenset())
                here = replace(setup, plan=plan, max_staleness=bound, refill=refill, extensions=on)
                points += [point for mode in modes for point in _points(mode, here, trace, costs)]
    return tuple(points)


def frontier(points: Iterable[Point]) -> tuple[Point, ...]:
    """Those for which no other point is as fresh on average and faster, freshest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.staleness_mean, p.hours)):
        if not kept or point.hours < kept[-1].hours:
            kept.append(point)
    return tuple(kept)


def hours_at(points: Sequence[Point], staleness: float) -> float:
    """The least hours that are reached within a mean staleness; infinite when nothing is as fresh."""
    return min((p.hours for p in points if p.staleness_mean <= staleness + 1e-9), default=math.inf)


def knee(points: Sequence[Point]) -> Point:
    """The point to choose: the freshest that takes no more than 10% longer than the fastest."""
    fastest = min(p.hours for p in points)
    return next(p for p in sorted(points, key=lambda p: p.staleness_mean) if p.hours <= 1.1 * fastest)


def _points(mode: Mode, setup: Setup, trace: Trace, costs: Costs) -> Iterable[Point]:
    for split in setup.splits if mode is Mode.ASYNC else (1,):
        how = replace(setup, mode=mode, async_training_cells=split)
        if runnable(how):
            found = Job(how, trace, costs).run()
            plan = how.plan
            yield Point(
                mode,
                plan.prefetch_steps,
                plan.steps_per_burst,
                how.refill,
                split,
                found.hours,
                found.staleness_updates_mean,
                found.staleness_updates_max,
            )

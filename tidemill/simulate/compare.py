"""One job in several modes on the same trace, and what no schedule can beat."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill.policy.decide import Mode
from tidemill.simulate.bound import makespan_bound
from tidemill.simulate.costs import Costs
from tidemill.simulate.job import Job
from tidemill.simulate.recorder import Recording
from tidemill.simulate.result import Result
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import Trace


@dataclass(frozen=True, slots=True)
class Run:
    """`setup` is what was simulated: with the mode, and for Async with the split."""

    setup: Setup
    result: Result


@dataclass(frozen=True, slots=True)
class Comparison:
    runs: dict[Mode, Run]
    bound_seconds: float

    @property
    def best(self) -> Mode:
        return min(self.runs, key=lambda mode: self.runs[mode].result.seconds)

    def speedup(self) -> dict[Mode, float]:
        """Of Elastic over each other mode."""
        elastic = self.runs.get(Mode.ELASTIC)
        if elastic is None:
            return {}
        return {mode: run.result.seconds / elastic.result.seconds for mode, run in self.runs.items() if mode is not Mode.ELASTIC}


def compare(setup: Setup, trace: Trace, costs: Costs, modes: tuple[Mode, ...], splits: tuple[int, ...], name: str = "") -> Comparison:
    """Mode Async is run with each of `splits`, and the fastest is kept. With a `name` events are recorded, for pictures."""
    runs = {}
    for mode in modes:
        tries = [replace(setup, mode=mode, async_training_cells=n) for n in splits] if mode is Mode.ASYNC else [replace(setup, mode=mode)]
        results = [Run(how, Job(how, trace, costs).run()) for how in tries if runnable(how)]
        if not results:
            continue
        best = min(results, key=lambda run: run.result.seconds)
        if name:
            best = Run(best.setup, Job(best.setup, trace, costs, Recording(name)).run())
        runs[mode] = best
    return Comparison(runs, makespan_bound(setup, trace, costs))


def runnable(setup: Setup) -> bool:
    """Somebody serves while somebody trains."""
    match setup.mode:
        case Mode.ELASTIC:
            return setup.cells > 1 or setup.standalone > 0
        case Mode.ASYNC:
            return setup.async_training_cells in setup.splits
        case Mode.COLOCATE:
            return True

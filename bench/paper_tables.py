"""The published figures (arXiv 2609.33848), predicted: parameters are fitted to the baselines and the stated facts alone, then Elastic is simulated.

    .venv/bin/python bench/paper_tables.py [--samples 60] [--seed 1]

Too few figures are published to pin B, N, mu, phi, C_e or the split, so many jobs are drawn, each is fitted (training speed by bisection), and all
that explain the baselines within 3% are kept. A prediction is the interval over these fits, with its median. What is published is printed beside it.
For the 122B rows no hours are published, only ratios to Elastic: what is fitted there is the ratio of the two baselines to each other.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import numpy as np

from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.simulate.costs import Costs
from tidemill.simulate.durations import Durations
from tidemill.simulate.job import Job
from tidemill.simulate.result import Result
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import Trace

HOUR = 3600.0
WITHIN = 0.03
FLIPS = (8.52, 3.46)  # seconds, published for 122B
GROUPS_PER_STEP = 4  # only its products with N and with 1/C_e show; small is fast


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    cells: int
    steps: int
    asynchronous: tuple[float, float]  # published, over Elastic
    colocate: tuple[float, float]
    hours: tuple[float, float] | None = None  # Async, Colocate, where published
    elastic_hours: float | None = None

    @property
    def between(self) -> tuple[float, float]:
        """Async over Colocate: all that the published ratios allow, corners included."""
        return self.asynchronous[0] / self.colocate[1], self.asynchronous[1] / self.colocate[0]


ROWS = (
    Row("2.4T NL2RepoBench, 4 x 48", 4, 48, (134.55 / 75.42,) * 2, (91.47 / 75.42,) * 2, (134.55, 91.47), 75.42),
    Row("122B NL2RepoBench, 8 x 4", 8, 48, (1.42, 1.53), (1.36, 1.47)),
    Row("122B TerminalBench, 6 x 4", 6, 24, (1.38, 1.43), (1.85, 1.85)),
    Row("122B DeepSWE, 6 x 4", 6, 24, (1.57, 1.57), (1.82, 1.82)),
)


@dataclass(frozen=True, slots=True)
class Fit:
    setup: Setup
    trace: Trace
    costs: Costs
    parameters: dict[str, float]
    colocate: float  # hours
    asynchronous: float
    elastic: Result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60, help="jobs drawn for each row")
    parser.add_argument("--row", type=int, help="only this row, from 0")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for number, row in enumerate(ROWS):
        if options.row not in (None, number):
            continue
        random = Random(f"{options.seed}/{number}")
        samples = options.samples * (2 if row.hours else 1)  # two published hours are harder to meet than one ratio
        fits = [fit for _ in range(samples) if (fit := draw(row, random)) is not None]
        print(f"\n{row.name}: {len(fits)} of {samples} drawn jobs explain the baselines within {WITHIN:.0%}")
        if fits:
            _print_row(row, fits)
            if row.cells == 8:
                _print_ablation(fits)
    return 0


def draw(row: Row, random: Random) -> Fit | None:
    """One job; None when no training speed makes it explain the baselines."""
    size = 4 if row.hours else random.choice((4, 8))
    mu = random.choice((3, 4, 6, 8) if row.hours else (1, 2, 3, 4, 6, 8))  # with fewer a burst's time-outs alone exceed Colocate's hours
    phi = random.choice((0, 0, 1, mu // 2, mu, 2 * mu))
    correlation, room, split = random.uniform(0.0, 0.8), random.uniform(0.5, 1.3), random.randint(1, row.cells - 1)
    seed = random.randrange(10**6)
    groups = GROUPS_PER_STEP * row.steps
    shape = _giant(random, correlation, size) if row.hours else _published_means(correlation, size)
    if shape is None:
        return None
    durations, limit = shape
    trace = durations.draw(groups, size, seed)
    capacity = max(1, round(room * (phi + mu) * GROUPS_PER_STEP * size / row.cells))
    setup = Setup(Mode.ELASTIC, Plan(GROUPS_PER_STEP, mu, phi, row.steps), size, row.cells, capacity, group_seconds=limit, streaming=False)

    fitted = _fit_hours(row, setup, trace) if row.hours else _fit_ratio(row, setup, trace, split)
    if fitted is None:
        return None
    setup, step_seconds = fitted
    costs = _costs(setup, trace, step_seconds)
    colocate, asynchronous = (Job(replace(setup, mode=mode), trace, costs).run().hours for mode in (Mode.COLOCATE, Mode.ASYNC))
    elastic = Job(replace(setup, streaming=True), trace, costs).run()
    room = setup.capacity * row.cells / ((phi + mu) * GROUPS_PER_STEP * size)
    parameters = {
        "N": size,
        "mu": mu,
        "phi": phi,
        "sigma": durations.sigma,
        "correlation": correlation,
        "C_R / executions": room,
        "split": setup.async_training_cells,
        "training h/step": step_seconds / HOUR,
    }
    return Fit(setup, trace, costs, parameters, colocate, asynchronous, elastic)


def _giant(random: Random, correlation: float, size: int) -> tuple[Durations, float] | None:
    """2.4T: 61.1% of the groups take over 4 h and 38.2% end at the overall time-out, whatever the spread; so the spread fixes the time-out."""
    sigma = random.uniform(0.2, 1.5)
    longest = Durations(1.0, sigma, correlation).draw(2000, size, 7)
    ends = np.sort([max(g.seconds) for g in longest.groups])
    mean = 4 * HOUR / float(np.quantile(ends, 1 - 0.611))
    return Durations(mean, sigma, correlation), mean * float(np.quantile(ends, 1 - 0.382))


def _published_means(correlation: float, size: int) -> tuple[Durations, float] | None:
    """122B: an execution takes 1.93 h on average and a group 2.96 h; given size and correlation that fixes the spread."""
    low, high = 0.05, 2.5
    for _ in range(24):
        sigma = (low + high) / 2
        groups = Durations(1.93, sigma, correlation).draw(2000, size, 7).groups
        mean = statistics.fmean(s for g in groups for s in g.seconds)
        if statistics.fmean(max(g.seconds) for g in groups) / mean < 2.96 / 1.93:
            low = sigma
        else:
            high = sigma
    return (Durations(1.93 * HOUR, sigma, correlation), math.inf) if high < 2.5 else None


def _costs(setup: Setup, trace: Trace, step_seconds: float) -> Costs:
    """`step_seconds`: one cell's training of a step."""
    rate = trace.mean_tokens * setup.rollouts_per_group * GROUPS_PER_STEP / step_seconds
    return Costs(rate, optimizer_step_seconds=60.0, publish_seconds=20.0, flip_to_training_seconds=FLIPS[0], flip_to_rollout_seconds=FLIPS[1])


def _hours(setup: Setup, trace: Trace, mode: Mode, step_seconds: float, split: int = 1) -> float:
    return Job(replace(setup, mode=mode, async_training_cells=split), trace, _costs(setup, trace, step_seconds)).run().hours


def _fit_ratio(row: Row, setup: Setup, trace: Trace, split: int) -> tuple[Setup, float] | None:
    """One cell's seconds of training a step, so that Async over Colocate comes out as published; None when it cannot."""
    wanted = math.sqrt(row.between[0] * row.between[1])

    def error(seconds: float) -> float:  # Async suffers more from slow training than Colocate does
        return _hours(setup, trace, Mode.ASYNC, seconds, split) / _hours(setup, trace, Mode.COLOCATE, seconds) / wanted - 1

    seconds = _bisect(error)
    return None if seconds is None else (replace(setup, async_training_cells=split), seconds)


def _fit_hours(row: Row, setup: Setup, trace: Trace) -> tuple[Setup, float] | None:
    """Training speed from Colocate's hours, then split and capacity from Async's, in turns."""
    asynchronous, colocate = row.hours or (0.0, 0.0)
    if _hours(setup, trace, Mode.COLOCATE, 1.0) > colocate:
        return None  # too slow before anything is trained
    for _ in range(5):
        seconds = _bisect(partial(_off_colocate, setup, trace, colocate))
        if seconds is None:
            return None
        errors = {split: _hours(setup, trace, Mode.ASYNC, seconds, split) / asynchronous - 1 for split in setup.splits}
        split = min(errors, key=lambda n: abs(errors[n]))
        if abs(errors[split]) < WITHIN:
            return replace(setup, async_training_cells=split), seconds
        least = max(1, setup.groups_per_burst * setup.rollouts_per_group * 2 // (5 * setup.cells))
        capacity = max(least, min(6 * least, round(setup.capacity * (1 + errors[split]) ** 1.2)))
        if capacity == setup.capacity:
            return None
        setup = replace(setup, capacity=capacity)
    return None


def _off_colocate(setup: Setup, trace: Trace, wanted: float, step_seconds: float) -> float:
    return _hours(setup, trace, Mode.COLOCATE, step_seconds) / wanted - 1


def _bisect(error: Callable[[float], float]) -> float | None:
    low, high = 1.0, 20 * HOUR
    for _ in range(14):
        middle = math.sqrt(low * high)
        off = error(middle)
        if abs(off) < WITHIN / 2:
            return middle
        low, high = (middle, high) if off < 0 else (low, middle)
    return None


def _print_row(row: Row, fits: Sequence[Fit]) -> None:
    if row.elastic_hours:
        _line("Elastic, hours", [f.elastic.hours for f in fits], (row.elastic_hours,) * 2)
    _line("Async / Elastic", [f.asynchronous / f.elastic.hours for f in fits], row.asynchronous)
    _line("Colocate / Elastic", [f.colocate / f.elastic.hours for f in fits], row.colocate)
    _line("flips of Elastic", [f.elastic.flips for f in fits], None)
    print("  how the speed-up over Colocate goes with each parameter (rank correlation over the fits):")
    gains = [f.colocate / f.elastic.hours for f in fits]
    print("   ", ", ".join(f"{name} {_rank([f.parameters[name] for f in fits], gains):+.2f}" for name in fits[0].parameters))


def _print_ablation(fits: Sequence[Fit]) -> None:
    """The first 12 steps of the 122B NL2RepoBench job."""
    print("  ablation, first 12 steps; change of the hours:")
    found: dict[str, list[float]] = {}
    for fit in fits:
        for name, value in _ablation(fit).items():
            found.setdefault(name, []).append(value)
    published = {
        "Async + streaming": -0.116,
        "Colocate + standalone": -0.029,
        "... + streaming": -0.148,
        "... + cells (Elastic), speed-up": 1.19,
        "single-step bursts": 0.109,
        "4 x 8 instead of 8 x 4": 0.022,
        "idle part of all cell hours, 8 x 4": 0.2085,
        "unused part of offered places, 8 x 4": 0.2085,
    }
    for name, values in found.items():
        _line(name, values, (published[name],) * 2)
    print(
        "    8 x 4 against 4 x 8 is published as +2.2% and the slack as 20.85%, the latter without what of: two readings are shown.\n"
        "    The ratio of standalone cells is not published: one of the eight is taken. Without it the step from Colocate cannot be pinned."
    )


def _ablation(fit: Fit) -> dict[str, float]:
    plan = replace(fit.setup.plan, steps=12)
    usual = replace(fit.setup, plan=plan)
    pool = replace(usual, mode=Mode.COLOCATE, cells=usual.cells - 1, standalone=1)
    four = replace(usual, streaming=True, cells=4, capacity=usual.capacity * 2)

    def result(how: Setup, costs: Costs = fit.costs) -> Result:
        return Job(how, fit.trace, costs).run()

    asynchronous = [result(replace(usual, mode=Mode.ASYNC, streaming=s)).hours for s in (False, True)]
    colocate = result(replace(usual, mode=Mode.COLOCATE)).hours
    standalone = [result(replace(pool, streaming=s)).hours for s in (False, True)]
    elastic = result(replace(usual, streaming=True))
    single = result(replace(usual, streaming=True, plan=replace(plan, steps_per_burst=1)))
    larger = result(four, replace(fit.costs, train_tokens_per_second=fit.costs.train_tokens_per_second * 2))
    return {
        "Async + streaming": asynchronous[1] / asynchronous[0] - 1,
        "Colocate + standalone": standalone[0] / colocate - 1,
        "... + streaming": standalone[1] / standalone[0] - 1,
        "... + cells (Elastic), speed-up": standalone[1] / elastic.hours,
        "single-step bursts": single.hours / elastic.hours - 1,
        "4 x 8 instead of 8 x 4": larger.hours / elastic.hours - 1,
        "idle part of all cell hours, 8 x 4": elastic.idle_seconds / elastic.cell_seconds,
        "unused part of offered places, 8 x 4": 1 - elastic.rollout_utilization,
    }


def _line(name: str, values: Sequence[float], published: tuple[float, float] | None) -> None:
    low, middle, high = (float(v) for v in np.quantile(values, (0.05, 0.5, 0.95)))
    told = ""
    if published:
        told = f"published {published[0]:.4g}" + (f" to {published[1]:.4g}" if published[1] != published[0] else "")
        inside = min(values) <= published[1] and max(values) >= published[0]
        nearest = min(published, key=lambda p: abs(p - middle))
        off = 0.0 if published[0] <= middle <= published[1] else middle / nearest - 1
        told += f"; {'inside' if inside else 'OUTSIDE'} all fits' range, median off by {off:+.1%}"
    print(f"    {name:38} median {middle:8.4g}  (5% {low:.4g} to 95% {high:.4g})  {told}")


def _rank(x: Sequence[float], y: Sequence[float]) -> float:
    if len(set(x)) < 2 or len(x) < 3:
        return 0.0
    first, second = (np.argsort(np.argsort(v)) for v in (x, y))
    return float(np.corrcoef(first, second)[0, 1])


if __name__ == "__main__":
    sys.exit(main())

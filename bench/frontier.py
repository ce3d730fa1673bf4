"""Hours against staleness on paper-like jobs: what each mode can reach over prefetch, burst length, dispatch rule and split.

    .venv/bin/python bench/frontier.py [--groups-per-step 4] [--steps 16] [--png FILE]

For every job: the frontier of each mode, Elastic with the recommended extensions; how much longer the better baseline takes at the same mean
staleness (in optimizer updates); and Elastic over the bound at every largest staleness. The baselines choose from the same prefetch, burst lengths
and dispatch rules, and Async its best split with hindsight at every point.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import DEFAULT
from tidemill.policy.staleness import default_bound
from tidemill.report.comparison import Pages, Plot, Series, draw_page
from tidemill.simulate.bound import makespan_bound
from tidemill.simulate.costs import Costs
from tidemill.simulate.durations import Durations
from tidemill.simulate.frontier import Point, explore, frontier, hours_at, knee
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import Trace

HOUR = 3600.0


def jobs(groups_per_step: int, steps: int) -> dict[str, tuple[Setup, Trace, Costs]]:
    """Spread and means as published; training between a third and two thirds of the rollout's cell time."""
    found = {}
    for name, cells, mean, sigma, limit, share in (
        ("2.4T-like, 4 cells", 4, 4.2, 0.6, 6.0, 0.5),
        ("2.4T-like, 4 cells, training-heavy", 4, 4.2, 0.6, 6.0, 1.0),
        ("122B-like, 8 cells", 8, 1.93, 0.6, float("inf"), 0.5),
        ("122B-like, 6 cells, heavy tail", 6, 1.93, 1.0, 8.0, 0.35),
    ):
        size, unfinished = 8, 3 * groups_per_step * 8
        capacity = max(1, round(unfinished / cells))
        setup = Setup(Mode.ELASTIC, Plan(groups_per_step, 2, 1, steps), size, cells, capacity, group_seconds=limit * HOUR)
        trace = Durations(mean * HOUR, sigma, 0.3, limit * HOUR, tokens_per_execution=1000.0).draw(setup.groups, size, seed=1)
        rate = 1000.0 / (share * trace.mean_seconds / capacity)
        found[name] = (setup, trace, Costs(rate, 60.0, 20.0, 8.52, 3.46))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups-per-step", type=int, default=4)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--png", type=Path, help="draw the frontiers")
    options = parser.parse_args()
    plots = []
    for name, (setup, trace, costs) in jobs(options.groups_per_step, options.steps).items():
        points = explore(replace(setup, extensions=DEFAULT), trace, costs)
        edges = {mode: frontier([p for p in points if p.mode is mode]) for mode in Mode}
        print(f"\n{name}")
        _print(edges, setup, trace, costs)
        print(f"  choose {knee(edges[Mode.ELASTIC])}")
        series = tuple(Series(mode.value, [(p.staleness_mean, p.hours) for p in edge]) for mode, edge in edges.items())
        plots.append(Plot(name, "mean staleness, optimizer updates", "hours", series))
    if options.png:
        draw_page(Pages("Hours against staleness", (), plots=tuple(plots)), options.png)
    return 0


def _print(edges: dict[Mode, tuple[Point, ...]], setup: Setup, trace: Trace, costs: Costs) -> None:
    elastic = edges[Mode.ELASTIC]
    print(f"  {'staleness':>9} {'Elastic h':>9} {'Colocate':>9} {'Async':>7} {'better / Elastic':>17} {'Elastic / bound':>16}   Elastic's point")
    gains = []
    for point in elastic:
        colocate, asynchronous = (hours_at(edges[mode], point.staleness_mean) for mode in (Mode.COLOCATE, Mode.ASYNC))
        gain = min(colocate, asynchronous) / point.hours
        gains.append(gain)
        plan = replace(setup.plan, prefetch_steps=point.prefetch_steps, steps_per_burst=point.steps_per_burst)
        bound = default_bound(point.prefetch_steps, point.steps_per_burst) + point.refill
        least = makespan_bound(replace(setup, plan=plan, max_staleness=bound), trace, costs) / HOUR
        print(
            f"  {point.staleness_mean:9.2f} {point.hours:9.1f} {colocate:9.1f} {asynchronous:7.1f} {gain:17.2f} {point.hours / least:16.2f}   {point}"
        )
    baselines = edges[Mode.COLOCATE] + edges[Mode.ASYNC]
    lost = [p for p in baselines if hours_at(elastic, p.staleness_mean) > p.hours * (1 + 1e-9)]
    print(f"  better baseline over Elastic: least {min(gains):.2f}, largest {max(gains):.2f}; points of a baseline not matched: {len(lost)}")
    for point in lost[:4]:
        print(f"    not matched: {point.hours:.1f} h at staleness {point.staleness_mean:.2f}, {point}")


if __name__ == "__main__":
    sys.exit(main())

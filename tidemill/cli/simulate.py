"""`tidemill simulate FILE`: would elasticity help this job, by how much, and with how many cells?"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidemill.api import InvalidManifest, RLJob, load_rljob
from tidemill.policy.decide import Mode
from tidemill.report.comparison import Bar, Pages, Plot, Series, draw_page, write_page
from tidemill.report.story import Story, tell
from tidemill.simulate.advice import advice
from tidemill.simulate.assumed import TOKENS_PER_EXECUTION, assumed_costs, told
from tidemill.simulate.compare import Comparison, compare
from tidemill.simulate.costs import BadCosts, Costs, read_costs
from tidemill.simulate.durations import Durations
from tidemill.simulate.frontier import Point, explore, frontier, knee
from tidemill.simulate.measured import measure
from tidemill.simulate.setup import Setup, setup_of
from tidemill.simulate.sweep import BadSweep, parse_axis, points
from tidemill.simulate.traces import BadTrace, Trace, read_trace
from tidemill.telemetry.events import BrokenEvents

EXIT_REFUSED = 2


class _Refused(Exception):
    """What was asked for does not fit together. Says what to change."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser("simulate", help="hours of a job in each mode, without running it")
    parser.add_argument("file", type=Path, metavar="FILE", help="an RLJob manifest")
    parser.add_argument("--mode", choices=["all", *(m.value for m in Mode)], default="all")
    parser.add_argument("--async-training-cells", metavar="N|best", default="best", help="split of mode Async (default: best, with hindsight)")
    parser.add_argument("--trace", type=Path, help='executions in dispatch order, one {"group": 0, "seconds": 60.0, "tokens": 800} a line')
    parser.add_argument("--costs", type=Path, help="what training and flips cost, YAML")
    parser.add_argument("--from", dest="origin", type=Path, metavar="DIR", help="measure durations and costs in a finished job's work folder")
    parser.add_argument("--seed", type=int, default=1, help="of the drawn durations, where there is no trace")
    parser.add_argument("--sweep", action="append", default=[], metavar="NAME=A..B", help="repeat over a range, e.g. cells=2..12; may be given again")
    parser.add_argument("--frontier", action="store_true", help="hours against staleness, over prefetch, burst length, dispatch and split")
    parser.add_argument("--json", action="store_true", help="print figures for programs")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with role timelines and hours")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write the same as a picture")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        job = load_rljob(arguments.file)
        setup = setup_of(job)
        axes = tuple(parse_axis(text) for text in arguments.sweep)
        trace, costs, notes = _inputs(arguments, job, setup)
        modes = tuple(Mode) if arguments.mode == "all" else (Mode(arguments.mode),)
        splits = _splits(arguments.async_training_cells, setup)
        name = job.metadata.name if arguments.html or arguments.png else ""
        found = compare(setup, trace, costs, modes, splits, name)
        swept = (
            [(values, compare(how, trace, costs, modes, _swept_splits(splits, setup, how))) for values, how in points(setup, axes)] if axes else []
        )
    except (InvalidManifest, BadTrace, BadCosts, BadSweep, BrokenEvents, _Refused) as cause:
        print(cause, file=sys.stderr)
        return EXIT_REFUSED
    if not found.runs:
        print(f"{arguments.file}: mode {arguments.mode} cannot run with {setup.cells} cells: nobody would serve; raise cells.count", file=sys.stderr)
        return EXIT_REFUSED
    edges = explore(setup, trace, costs, modes=modes) if arguments.frontier else ()
    words = advice(setup, trace, costs, found)
    if edges:
        words = (*words, f"On the frontier of hours against staleness choose {_at(knee(frontier(edges)))}.")
    if arguments.json:
        print(json.dumps(_document(found, swept, edges)))
    else:
        _print(found, swept, edges, (*notes, *words))
    try:
        _draw(arguments, Pages(f"{job.metadata.name}, simulated", words, _bars(found), _stories(found), _plots(axes, swept, edges)))
    except OSError as cause:
        print(f"cannot write the picture: {cause.strerror}: {cause.filename}; give another --html or --png", file=sys.stderr)
        return EXIT_REFUSED
    return 0


def _inputs(arguments: argparse.Namespace, job: RLJob, setup: Setup) -> tuple[Trace, Costs, tuple[str, ...]]:
    """Durations and costs, and what has to be said about where they come from."""
    measured = measure(arguments.origin) if arguments.origin else None
    if arguments.trace:
        trace = read_trace(arguments.trace)
    elif measured:
        trace = measured[0]
    else:
        how = job.spec.simulation
        drawn = Durations(how.mean_seconds, how.sigma, how.group_correlation, setup.execution_seconds, TOKENS_PER_EXECUTION)
        trace = drawn.draw(setup.groups, setup.rollouts_per_group, arguments.seed)
    if trace.rollouts_per_group != setup.rollouts_per_group:
        raise _Refused(
            f"{arguments.trace or arguments.origin}: its groups have {trace.rollouts_per_group} executions, but "
            f"spec.schedule.rolloutsPerGroup is {setup.rollouts_per_group}; make them the same"
        )
    notes = []
    if len(trace.groups) < setup.groups:
        notes.append(f"The trace has {len(trace.groups)} groups and the job trains {setup.groups}: they come round again.")
    if arguments.costs:
        costs = read_costs(arguments.costs)
    elif measured:
        costs = measured[1]
    else:
        costs = assumed_costs(setup, trace.mean_seconds)
        if arguments.trace:  # its tokens count in their own unit
            costs = replace(costs, train_tokens_per_second=costs.train_tokens_per_second * max(trace.mean_tokens, 1e-9) / TOKENS_PER_EXECUTION)
        notes.append(told())
    return trace, costs, tuple(notes)


def _splits(text: str, setup: Setup) -> tuple[int, ...]:
    if text == "best":
        return tuple(setup.splits)
    if not text.isdigit() or int(text) not in setup.splits:
        raise _Refused(f"--async-training-cells {text}: give best, or a number from 1 to {setup.splits.stop - 1} so that somebody serves")
    return (int(text),)


def _swept_splits(splits: tuple[int, ...], setup: Setup, swept: Setup) -> tuple[int, ...]:
    return tuple(swept.splits) if splits == tuple(setup.splits) else splits


def _document(found: Comparison, swept: list[tuple[dict[str, int], Comparison]], edges: tuple[Point, ...]) -> dict[str, Any]:
    document = _figures(found)
    if swept:
        document["sweep"] = [values | _figures(here) for values, here in swept]
    if edges:
        document["frontier"] = {mode.value: [_point(p) for p in frontier([p for p in edges if p.mode is mode])] for mode in Mode}
    return document


def _figures(found: Comparison) -> dict[str, Any]:
    modes = {
        mode.value: {
            "hours": run.result.hours,
            "rolloutUtilization": run.result.rollout_utilization,
            "trainingUtilization": run.result.training_utilization,
            "idleHours": run.result.idle_seconds / 3600,
            "flips": run.result.flips,
            "stalenessMax": run.result.staleness_max,
            "stepsDone": run.result.steps_done,
        }
        for mode, run in found.runs.items()
    }
    return {"modes": modes, "bound": {"hours": found.bound_seconds / 3600}, "speedup": {m.value: s for m, s in found.speedup().items()}}


def _point(point: Point) -> dict[str, Any]:
    return {
        "hours": point.hours,
        "stalenessMeanUpdates": point.staleness_mean,
        "stalenessMaxUpdates": point.staleness_max,
        "prefetchSteps": point.prefetch_steps,
        "stepsPerBurst": point.steps_per_burst,
        "dispatch": "Refill" if point.refill else "Boundary",
        "asyncTrainingCells": point.training_cells if point.mode is Mode.ASYNC else None,
    }


def _print(found: Comparison, swept: list[tuple[dict[str, int], Comparison]], edges: tuple[Point, ...], words: tuple[str, ...]) -> None:
    print(f"{'mode':22} {'hours':>8} {'rollout':>8} {'training':>9} {'idle hours':>11} {'flips':>6} {'staleness':>10} {'steps':>6}")
    for mode, run in found.runs.items():
        r = run.result
        print(
            f"{_label(found, mode):22} {r.hours:8.3g} {r.rollout_utilization:8.0%} {r.training_utilization:9.0%} {r.idle_seconds / 3600:11.3g} "
            f"{r.flips:6} {r.staleness_max:10} {r.steps_done:6}"
        )
    print(f"{'no schedule below':22} {found.bound_seconds / 3600:8.3g}")
    for values, here in swept:
        hours = "  ".join(f"{_label(here, m)} {r.result.hours:.3g} h" for m, r in here.runs.items())
        print(f"{', '.join(f'{n} {v}' for n, v in values.items()):22} {hours}  bound {here.bound_seconds / 3600:.3g} h")
    for mode in Mode:
        for point in frontier([p for p in edges if p.mode is mode]):
            print(f"{point.hours:8.3g} h at {_at(point)}")
    print()
    for line in words:
        print(line)


def _at(point: Point) -> str:
    return f"{point} ({point.hours:.3g} h, staleness {point.staleness_mean:.2f} updates on average, {point.staleness_max} at most)"


def _label(found: Comparison, mode: Mode) -> str:
    return f"{mode} ({found.runs[mode].setup.async_training_cells} train)" if mode is Mode.ASYNC else mode.value


def _bars(found: Comparison) -> tuple[Bar, ...]:
    return (*(Bar(_label(found, m), r.result.hours) for m, r in found.runs.items()), Bar("no schedule below", found.bound_seconds / 3600))


def _stories(found: Comparison) -> tuple[Story, ...]:
    told = (tell(run.result.events, run.result.seconds) for run in found.runs.values() if run.result.events)
    return tuple(story for story in told if story is not None)


def _plots(axes: tuple[Any, ...], swept: list[tuple[dict[str, int], Comparison]], edges: tuple[Point, ...]) -> tuple[Plot, ...]:
    plots = []
    if swept:
        first, *others = (axis.name for axis in axes)
        lines: dict[str, list[tuple[float, float]]] = {}
        for values, here in swept:
            rest = "".join(f", {name} {values[name]}" for name in others)
            for mode, run in here.runs.items():
                lines.setdefault(f"{mode}{rest}", []).append((values[first], run.result.hours))
        plots.append(Plot(f"Hours by {first}", first, "hours", tuple(Series(label, line) for label, line in lines.items())))
    if edges:
        by_mode = {mode: frontier([p for p in edges if p.mode is mode]) for mode in Mode}
        series = tuple(Series(mode.value, [(p.staleness_mean, p.hours) for p in line]) for mode, line in by_mode.items() if line)
        plots.append(Plot("Hours against staleness", "mean staleness, optimizer updates", "hours", series))
    return tuple(plots)


def _draw(arguments: argparse.Namespace, pages: Pages) -> None:
    if arguments.html:
        write_page(pages, arguments.html)
    if arguments.png:
        draw_page(pages, arguments.png)

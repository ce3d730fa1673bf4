"""Two or three plain sentences: which mode, how many cells, what limits, and what would change it."""

from __future__ import annotations

from dataclasses import replace

from tidemill.policy.decide import Mode
from tidemill.simulate.compare import Comparison
from tidemill.simulate.costs import Costs
from tidemill.simulate.job import Job
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import Trace

WORTH = 1.02
"""Differences below this are not worth a word."""


def advice(setup: Setup, trace: Trace, costs: Costs, found: Comparison) -> tuple[str, ...]:
    best = found.best
    run = found.runs[best]
    return (_which(found, best), _limit(setup, trace, costs, run.setup, run.result.seconds, found.bound_seconds), _change(trace, costs, run.setup))


def _which(found: Comparison, best: Mode) -> str:
    hours = found.runs[best].result.hours
    others = sorted((run.result.hours, mode) for mode, run in found.runs.items() if mode is not best)
    split = f" with {found.runs[best].setup.async_training_cells} training cells" if best is Mode.ASYNC else ""
    if not others:
        return f"{best}{split} takes {hours:.3g} h."
    words = [f"{h / hours:.2f} times as long as {best}" if h > WORTH * hours else "about as long" for h, _ in others]
    told = " and ".join(f"{mode} {word}" for (_, mode), word in zip(others, words, strict=True))
    return f"Choose {best}{split}: {hours:.3g} h; {told}."


def _limit(setup: Setup, trace: Trace, costs: Costs, chosen: Setup, seconds: float, bound: float) -> str:
    """What takes away most when it is taken away."""
    gains = {
        "the longest executions": _seconds(chosen, _evened(trace, setup), costs),
        "training": _seconds(chosen, trace, replace(costs, train_tokens_per_second=costs.train_tokens_per_second * 1e6)),
        "flips": _seconds(chosen, trace, replace(costs, flip_to_training_seconds=0.0, flip_to_rollout_seconds=0.0)),
        "updates and publications": _seconds(chosen, trace, replace(costs, optimizer_step_seconds=0.0, publish_seconds=0.0)),
        "room for executions": _seconds(replace(chosen, capacity=chosen.capacity * 4), trace, costs),
    }
    limit = min(gains, key=lambda name: gains[name])
    share = 1 - gains[limit] / seconds if seconds else 0.0
    return (
        f"What limits it is {limit}: without that it would take {share:.0%} less; no schedule of the same staleness can take less than "
        f"{bound / 3600:.3g} h ({seconds / max(bound, 1e-9):.2f} times less)."
    )


def _change(trace: Trace, costs: Costs, chosen: Setup) -> str:
    """One more cell, or one step more of prefetch."""
    now = _seconds(chosen, trace, costs)
    more = _seconds(replace(chosen, cells=chosen.cells + 1), trace, costs)
    fewer = chosen.cells - 1
    told = f"One more cell ({chosen.cells + 1}) would make it {now / more:.2f} times as fast"
    if fewer >= 2 and chosen.mode is not Mode.ASYNC:
        told += f", one fewer {now / _seconds(replace(chosen, cells=fewer), trace, costs):.2f} times"
    ahead = replace(chosen, plan=replace(chosen.plan, prefetch_steps=chosen.plan.prefetch_steps + chosen.plan.steps_per_burst), max_staleness=None)
    return f"{told}; one publication more of prefetch (prefetchSteps {ahead.plan.prefetch_steps}) {now / _seconds(ahead, trace, costs):.2f} times."


def _evened(trace: Trace, setup: Setup) -> Trace:
    """The same work, every execution as long as the mean of all."""
    mean = trace.mean_seconds
    return Trace(tuple(replace(g, seconds=(mean,) * setup.rollouts_per_group) for g in trace.groups))


def _seconds(setup: Setup, trace: Trace, costs: Costs) -> float:
    return Job(setup, trace, costs).run().seconds

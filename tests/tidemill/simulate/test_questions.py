"""What is asked of simulations: comparisons, sweeps, frontiers, measurements."""

import itertools
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.tidemill.simulate.jobs import COSTS, even, setup
from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.simulate.advice import advice
from tidemill.simulate.bound import makespan_bound
from tidemill.simulate.compare import compare
from tidemill.simulate.durations import Durations
from tidemill.simulate.frontier import explore, frontier, hours_at, knee
from tidemill.simulate.job import Job
from tidemill.simulate.measured import measure
from tidemill.simulate.recorder import Recording
from tidemill.simulate.sweep import Axis, BadSweep, parse_axis, points
from tidemill.simulate.traces import BadTrace

TRACE = Durations(50.0, 0.8, 0.3, tokens_per_execution=20.0).draw(12, 2, 3)


def test_async_is_judged_by_its_best_split() -> None:
    found = compare(setup(), TRACE, COSTS, tuple(Mode), (1, 2))
    hours = [Job(replace(setup(), mode=Mode.ASYNC, async_training_cells=n), TRACE, COSTS).run().seconds for n in (1, 2)]
    assert found.runs[Mode.ASYNC].result.seconds == min(hours)
    assert found.speedup()[Mode.ASYNC] == min(hours) / found.runs[Mode.ELASTIC].result.seconds
    assert all(run.result.seconds >= found.bound_seconds for run in found.runs.values())


def test_a_mode_in_which_nobody_would_serve_is_left_out() -> None:
    assert set(compare(setup(cells=1, capacity=12), TRACE, COSTS, tuple(Mode), (1,)).runs) == {Mode.COLOCATE}


def test_the_bound_is_reached_when_everything_has_to_happen_one_after_the_other() -> None:
    """No prefetch, and groups as long as each other: every burst is rollout, training by one cell, update, publication."""
    how = setup(plan=Plan(1, 1, 0, 4), mode=Mode.ASYNC, cells=2)
    found = Job(how, even(4, tokens=0.0), COSTS).run()
    assert found.seconds == pytest.approx(4 * (10 + 2 + 1))
    assert makespan_bound(how, even(4, tokens=0.0), COSTS) == pytest.approx(found.seconds)


def test_a_larger_staleness_never_raises_the_bound() -> None:
    bounds = [makespan_bound(setup(max_staleness=n), TRACE, COSTS) for n in (1, 2, 3)]
    assert bounds == sorted(bounds, reverse=True)


def test_sweeps_are_ranges_or_lists_and_combine() -> None:
    assert parse_axis("cells=2..4") == Axis("cells", (2, 3, 4))
    assert parse_axis("capacity=8..16..4") == Axis("capacity", (8, 12, 16))
    combined = list(points(setup(), (parse_axis("cells=2,3"), parse_axis("prefetchSteps=0..1"))))
    assert [(v["cells"], v["prefetchSteps"]) for v, _ in combined] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert [(how.cells, how.plan.prefetch_steps) for _, how in combined] == [(2, 0), (2, 1), (3, 0), (3, 1)]


@pytest.mark.parametrize("axis", ["capacity=5", "standalone=2", "groupsPerStep=3", "stepsPerBurst=3", "steps=7", "maxStaleness=4"])
def test_every_axis_changes_the_job(axis: str) -> None:
    ((_, how),) = points(setup(), (parse_axis(axis),))
    assert how != setup()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("nodes=1..3", "'nodes' cannot be swept; use one of cells"),
        ("cells=a..b", "is no range"),
        ("cells=5..2", "holds no number"),
        ("cells=0..2", "0 is less than 1"),
        ("cells", "is no range"),
    ],
)
def test_bad_sweeps_say_what_would_be_good(text: str, what: str) -> None:
    with pytest.raises(BadSweep) as refusal:
        parse_axis(text)
    assert what in str(refusal.value)


def test_a_sweep_that_would_take_for_ever_is_refused() -> None:
    with pytest.raises(BadSweep, match="combinations are more than"):
        list(points(setup(), (parse_axis("cells=1..100"), parse_axis("capacity=1..100"))))


def test_a_frontier_holds_no_point_that_another_beats_in_both() -> None:
    found = explore(setup(), TRACE, COSTS, prefetch=(0, 1, 2), bursts=(1, 2))
    assert {p.mode for p in found} == set(Mode)
    edge = frontier(p for p in found if p.mode is Mode.ELASTIC)
    assert all(a.staleness_mean < b.staleness_mean and a.hours > b.hours for a, b in itertools.pairwise(edge))
    assert all(hours_at(edge, p.staleness_mean) <= p.hours for p in found if p.mode is Mode.ELASTIC)
    assert hours_at(edge, -1.0) == float("inf")
    assert knee(edge).hours <= 1.1 * edge[-1].hours


def test_advice_names_the_mode_the_limit_and_what_would_change_it() -> None:
    found = compare(setup(), TRACE, COSTS, tuple(Mode), (1, 2))
    which, limit, change = advice(setup(), TRACE, COSTS, found)
    assert which.startswith(f"Choose {found.best}")
    assert "no schedule of the same staleness" in limit
    assert "One more cell (4)" in change


def test_the_limit_that_is_named_is_what_was_made_slow() -> None:
    slow = replace(COSTS, train_tokens_per_second=0.2)
    found = compare(setup(), TRACE, slow, (Mode.ELASTIC,), (1,))
    assert "What limits it is training" in advice(setup(), TRACE, slow, found)[1]


def test_durations_and_costs_are_measured_from_a_jobs_records(tmp_path: Path) -> None:
    """A simulated job leaves the same records as a real one."""
    found = Job(setup(), TRACE, COSTS, Recording("small")).run()
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in found.events))
    trace, costs = measure(tmp_path)
    assert [s for g in trace.groups for s in g.seconds] == pytest.approx([s for g in TRACE.groups for s in g.seconds])
    assert trace.mean_tokens == pytest.approx(TRACE.mean_tokens, rel=0.05)
    assert costs.flip_to_training_seconds == pytest.approx(3.0)
    assert costs.flip_to_rollout_seconds == pytest.approx(2.0, abs=1.5), "a cell that is called back in mid-flip arrives first"
    assert costs.publish_seconds == pytest.approx(1.0)


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="holds no job"):
        measure(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(BadTrace, match="no step was committed"):
        measure(tmp_path)

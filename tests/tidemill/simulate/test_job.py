"""The loop: hand-computed small jobs, and what must hold in every job whatever happens in which order."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tidemill.simulate.jobs import COSTS, Watch, even, random_jobs, setup
from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import Extension
from tidemill.simulate.bound import makespan_bound
from tidemill.simulate.costs import Costs
from tidemill.simulate.durations import Durations
from tidemill.simulate.job import Job
from tidemill.simulate.recorder import Recording
from tidemill.simulate.setup import Setup
from tidemill.simulate.traces import GroupTrace, Trace

ONE_STEP = Plan(groups_per_step=2, steps_per_burst=1, prefetch_steps=0, steps=1)


SMALL = setup(plan=ONE_STEP, cells=2, capacity=2)  # all places are taken until the executions end


def test_one_step_is_rollout_flip_training_update_and_publication_one_after_the_other() -> None:
    """Executions end at 10; the core flips until 13 and computes three micro-steps of a second; at 16 the other cell has joined."""
    found = Job(SMALL, even(2), COSTS).run()
    assert found.seconds == pytest.approx(10 + 3 + 4 + 2 + 1)
    assert (found.steps_done, found.staleness_max, found.executions, found.flips) == (1, 0, 4, 4)


def test_cells_that_train_share_the_micro_steps_of_one_queue() -> None:
    """Four of 6 s: the core begins at 13 and 19, the other cell at 16 and 22."""
    assert Job(SMALL, even(2, tokens=60), COSTS).run().seconds == pytest.approx(28 + 2 + 1)


def test_executions_wait_for_places_and_start_in_the_order_of_dispatch() -> None:
    how = setup(plan=ONE_STEP, mode=Mode.COLOCATE, cells=1, capacity=2)
    found = Job(how, even(2), COSTS).run()
    assert found.seconds == pytest.approx(2 * 10 + 3 + 4 + 2 + 1)


def test_without_streaming_nothing_is_trained_before_all_groups_of_a_step_are_ready() -> None:
    trace = Trace((GroupTrace((10.0, 10.0), (100.0, 100.0)), GroupTrace((40.0, 40.0), (10.0, 10.0))))
    how = setup(plan=ONE_STEP, mode=Mode.ASYNC)
    assert Job(how, trace, COSTS).run().seconds == pytest.approx(40 + 2 + 2 + 1)
    assert Job(replace(how, streaming=False), trace, COSTS).run().seconds == pytest.approx(40 + 22 + 2 + 1)


def test_more_executions_than_places_slow_each_other_down_but_tools_do_not() -> None:
    assert Costs(1.0).speed(1.0) == 1.0
    assert Costs(1.0).speed(2.0) == 0.5
    assert Costs(1.0, tool_share=0.5).progress(2.0) == pytest.approx(1 / 1.5)
    measured = Costs(1.0, concurrency=((0.5, 1.0), (1.0, 0.8)))
    assert measured.speed(0.75) == pytest.approx(0.9)
    assert measured.speed(2.0) == pytest.approx(0.4)
    slow = Job(setup(plan=ONE_STEP, cells=2, capacity=2, mode=Mode.ASYNC), even(1), Costs(1e9, concurrency=((1.0, 0.5),)))
    assert slow.run().seconds == pytest.approx(2 * 20.0), "two executions at a time, at half speed"


def test_an_execution_is_scored_at_its_time_out_and_dropped_at_its_groups_when_so_wanted() -> None:
    trace = Trace((GroupTrace((10.0, 10.0), (10.0, 10.0)), GroupTrace((10.0, 90.0), (10.0, 10.0))))
    how = setup(plan=ONE_STEP, mode=Mode.ASYNC)
    assert Job(replace(how, execution_seconds=50.0), trace, COSTS).run().seconds == pytest.approx(50 + 1 + 50 / 90 + 2 + 1)
    dropped = Job(replace(how, group_seconds=50.0, drop_at_group_timeout=True), trace, COSTS).run()
    assert dropped.dropped_groups == 1, "one scored execution is not enough"
    assert dropped.steps_done == 1


def test_executions_that_never_got_a_place_are_dropped_at_their_groups_time_out() -> None:
    how = setup(plan=ONE_STEP, mode=Mode.COLOCATE, cells=1, capacity=3, group_seconds=15.0)
    found = Job(how, even(2, size=4, seconds=12.0), COSTS).run()
    assert found.steps_done == 1
    assert found.executions == 8


def test_refill_dispatches_inside_a_burst_and_never_beyond_what_the_bound_allows() -> None:
    how = setup(plan=Plan(2, 2, 2, 12), refill=True, max_staleness=2)
    watch = Watch(published_rule=False)
    refilled = Job(how, Durations(10.0, 0.8, 0.3, tokens_per_execution=10.0).draw(24, 2, 1), COSTS, watch).run()
    assert refilled.staleness_max == 2


@settings(max_examples=150, deadline=None)
@given(random_jobs())
def test_the_published_rule_keeps_its_promises_in_whatever_order_executions_end(job: tuple[Setup, Trace, Costs]) -> None:
    """Training cells a prefix, the waterlevel never rising inside a burst, capacity for everybody at a flip, the staleness bound, and an end."""
    how, trace, costs = job
    found = Job(how, trace, costs, Watch()).run()
    assert found.steps_done == how.plan.steps
    assert found.staleness_max <= how.bound
    assert found.dropped_groups == 0
    assert found.executions == how.groups * how.rollouts_per_group


@settings(max_examples=100, deadline=None)
@given(random_jobs(), st.sampled_from(Mode), st.booleans(), st.integers(0, 2))
def test_every_mode_ends_within_the_staleness_bound_and_not_before_the_proven_bound(
    job: tuple[Setup, Trace, Costs], mode: Mode, refill: bool, slack: int
) -> None:
    how, trace, costs = job
    how = replace(how, mode=mode, refill=refill, max_staleness=how.bound + slack)
    found = Job(how, trace, costs, Watch(published_rule=False)).run()
    assert found.steps_done == how.plan.steps
    assert found.staleness_max <= how.bound
    assert found.seconds >= makespan_bound(how, trace, costs) * (1 - 1e-9)


@settings(max_examples=150, deadline=None)
@given(random_jobs(), st.frozensets(st.sampled_from(Extension)), st.booleans())
def test_no_extension_breaks_the_bound_or_stops_a_job(job: tuple[Setup, Trace, Costs], extensions: frozenset[Extension], refill: bool) -> None:
    how, trace, costs = job
    how = replace(how, extensions=extensions, refill=refill, max_staleness=how.bound + refill)
    found = Job(how, trace, costs, Watch(published_rule=False)).run()
    assert found.steps_done == how.plan.steps
    assert found.staleness_max <= how.bound
    assert found.seconds >= makespan_bound(how, trace, costs) * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(random_jobs(), st.integers(0, 2**32))
def test_an_event_of_an_older_epoch_changes_nothing(job: tuple[Setup, Trace, Costs], seed: int) -> None:
    """Every acknowledgement of a role is told twice more, late: the job does not notice."""

    class Echo(Job):
        def _settled(self, index: int, epoch: int) -> None:
            super()._settled(index, epoch)
            if epoch > 1:
                super()._settled(index, epoch - 1)

    how, trace, costs = job
    assert Echo(how, trace, costs).run() == Job(how, trace, costs).run()


def test_a_recorded_simulation_tells_the_same_story_as_a_real_job() -> None:
    found = Job(setup(), even(12), COSTS, Recording("small")).run()
    kinds = [type(e).__name__ for e in found.events]
    assert kinds[0] == "JobStarted"
    assert kinds[-1] == "JobEnded"
    assert kinds.count("StepCommitted") == 6
    assert kinds.count("VersionPublished") == 3
    assert kinds.count("ExecutionEnded") == 24
    assert kinds.count("FlipEnded") <= found.flips
    assert found == replace(Job(setup(), even(12), COSTS).run(), decisions=found.decisions, events=found.events), "recording changes nothing"


def test_a_job_of_the_published_size_is_few_events() -> None:
    """48 steps, 4 cells, 10,000 executions: what it takes is counted, because times depend on the machine."""
    how = Setup(Mode.ELASTIC, Plan(26, 2, 1, 48), 8, 4, 160)
    trace = Durations(6948.0, 0.8, 0.3, 5 * 3600.0, tokens_per_execution=1000.0).draw(how.groups, 8, 1)
    job = Job(how, trace, Costs(50.0, 30.0, 10.0, 8.5, 3.5))
    assert job.run().executions == 9984
    assert job.passes < 3 * 9984


def test_a_thousand_cells_are_simulated_whole() -> None:
    how = Setup(Mode.ELASTIC, Plan(60, 2, 1, 4), 8, 1000, 2)
    trace = Durations(1000.0, 0.8, 0.3, tokens_per_execution=1000.0).draw(how.groups, 8, 1)
    job = Job(how, trace, Costs(10.0, 30.0, 10.0, 0.5, 0.5))
    assert job.run().steps_done == 4
    assert job.passes < 6 * how.groups * 8

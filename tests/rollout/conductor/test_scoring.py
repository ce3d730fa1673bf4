"""What becomes of scores, of work that cannot be judged, and of evaluators that fail."""

import math
from pathlib import Path

import pytest

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.test_executions import opened
from tests.rollout.conductor.world import Ended, World, settings, turn, world
from tidemill.policy.burst import Plan
from tidemill.telemetry.events import EvaluationEnded, GroupDropped, StepCommitted
from tidemill.trajectory.files import read_trajectory
from tidemill.trajectory.records import Judgement, Trajectory
from tidemill.wire.gateway import Turns
from tidemill_rollout.conductor import executions, groups
from tidemill_rollout.conductor.books import read as read_books

THREE_TOKENS = 3
"""One turn of the stand-in."""


def recorded(job: World, execution: str) -> Trajectory:
    return read_trajectory(job.folder / "trajectories" / f"{execution}.msgpack")


def trained_tokens(job: World, group: int) -> int:
    return sum(tokens for (tokens,) in job.rows(f"SELECT trained_tokens FROM microsteps WHERE group_id = {group}"))


async def test_a_score_says_what_it_rests_on_and_work_is_judged_as_it_stands_at_the_time_out(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        keep = job.sandboxes.turns
        assert keep is not None

        def out_of_time(execution: str, attempt: int) -> Ended | None:
            if execution != "g1-0":
                return None
            keep(Turns(execution, attempt, (turn(execution, attempt),)))
            return Ended(-9, timed_out=True)

        job.sandboxes.behave = out_of_time
        job.sandboxes.crashes = {"g2-0": 2, "g3-0": 3}
        await job.to_the_end()
        check(job)
        late = recorded(job, "g1-0")
        assert (late.score, late.ended) == (1.0, "ran into its time-out")
        assert late.judged == Judgement(True, "tests ended", "executions/g1-0/1/work", "blake2b:00", 1)
        assert recorded(job, "g1-1").ended == "ended with code 0"
        retried = recorded(job, "g2-0")
        assert (retried.score, retried.judged.evaluations) == (1.0, 3)
        failed = recorded(job, "g3-0")
        assert (failed.score, failed.judged) == (None, Judgement(False, "evaluator failed: tests wrote no reward", "executions/g3-0/1/work", "", 3))


async def test_where_nothing_can_be_judged_the_zero_counts_for_the_others_and_nothing_of_it_is_trained(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.nothing_to_judge = frozenset({"g1-1"})
        await job.to_the_end()
        check(job)
        assert (trained_tokens(job, 1), trained_tokens(job, 2)) == (THREE_TOKENS, 2 * THREE_TOKENS)
        nothing = recorded(job, "g1-1")
        assert (nothing.score, nothing.judged.valid, len(nothing.turns)) == (0.0, False, 1)
        assert job.rows("SELECT state, score FROM executions WHERE id = 'g1-1'") == [("Scored", 0.0)]


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, None])
async def test_what_is_no_finite_number_is_no_score(tmp_path: Path, nonsense: float | None) -> None:
    how = settings(plan=Plan(groups_per_step=1, steps_per_burst=1, prefetch_steps=0, steps=1))
    async with world(tmp_path, how) as job:
        job.sandboxes.score = lambda execution, attempt: nonsense if execution == "g1-0" else 0.5
        await job.to_the_end()
        [(state, score, reason)] = job.rows("SELECT state, score, reason FROM executions WHERE id = 'g1-0'")
        assert (state, score, reason) == ("Dropped", None, f"no valid score: {nonsense}; tests ended")
        assert recorded(job, "g1-0").score is None


async def test_groups_whose_scores_are_equal_are_counted(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.score = lambda execution, attempt: 0.5 if execution.startswith(("g1-", "g4-")) else float(execution[-1] == "0")
        await job.to_the_end()
        check(job)
        assert sum(step.equal_groups for step in job.of(StepCommitted)) == 2
        assert read_books(job.store.db, job.how).counters["equal groups"] == 2
        assert sum(step.groups for step in job.of(StepCommitted)) == 8
        assert trained_tokens(job, 1) == 0


async def test_groups_whose_scores_are_equal_are_skipped_where_the_job_says_so_and_refill_dispatches_others(tmp_path: Path) -> None:
    async with world(tmp_path, settings(skip_equal_groups=True, refill=True)) as job:
        job.sandboxes.score = lambda execution, attempt: 0.5 if execution.startswith(("g1-", "g4-")) else float(execution[-1] == "0")
        await job.to_the_end()
        check(job)
        skipped = [event for event in job.of(GroupDropped) if event.reason == "equal scores: of 2 executions"]
        assert {event.group for event in skipped} == {1, 4}
        assert read_books(job.store.db, job.how).groups_dropped["EqualScores"] == 2
        assert [step.groups for step in job.of(StepCommitted)] == [2, 2, 2, 2]
        assert sum(step.equal_groups for step in job.of(StepCommitted)) == 0


def test_how_a_harness_ended_survives_a_restart_of_the_conductor(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.transaction() as db:
        (execution,) = executions.start(db, 1, 1.0)
        executions.evaluate(db, execution.id, 1, "ran into its time-out")
    store.close()
    (waiting,) = executions.in_state(opened(tmp_path).db, "Evaluating")
    assert waiting.reason == "ran into its time-out"


def test_what_is_measured_is_never_skipped(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.transaction() as db:
        groups.create(db, groups.EVALUATE, "one", 0, 2, 0.0)
        for execution in executions.start(db, 100, 1.0):
            executions.evaluate(db, execution.id, 1)
            executions.score(db, execution.id, 1, 0.5, "", 2.0)
        groups.settle(db, 3.0, skip_equal=True)
    states = store.db.execute("SELECT purpose, state FROM groups").fetchall()
    assert {tuple(row) for row in states} == {("Train", "Dropped"), ("Evaluate", "Measured")}


async def test_a_measurement_counts_what_it_could_not_score_and_takes_none_of_it_for_a_zero(tmp_path: Path) -> None:
    how = settings(executions_per_held_out_task=2, plan=Plan(groups_per_step=1, steps_per_burst=1, prefetch_steps=0, steps=1))
    async with world(tmp_path, how, held_out=("exam",)) as job:
        job.sandboxes.score = lambda execution, attempt: 0.75
        job.sandboxes.crashes = {"e1-0": 3}
        await job.to_the_end()
        measured = job.of(EvaluationEnded)
        assert [(event.executions, event.dropped, event.mean_score) for event in measured] == [(1, 1, 0.75), (2, 0, 0.75)]

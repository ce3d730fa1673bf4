from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.conductor.world import Ended, World, settings, world
from tests.tidemill.telemetry.exported import OPENMETRICS, Series, series, undeclared, value
from tidemill.telemetry.catalogue import conductor as catalogue
from tidemill.telemetry.catalogue import of
from tidemill.telemetry.events import FlipEnded, GroupDropped, StepCommitted
from tidemill.telemetry.registry import Registry
from tidemill.wire.cell import Role
from tidemill_rollout.conductor.books import halves, reason_of_execution, reason_of_group
from tidemill_rollout.conductor.figures import Figures
from tidemill_rollout.conductor.microsteps import Lost


async def page(job: World) -> str:
    async with job.session.get(f"http://127.0.0.1:{job.port}/metrics", headers={"Accept": OPENMETRICS}) as answer:
        assert answer.status == 200
        return await answer.text()


async def figures(job: World) -> Series:
    return series(await page(job))


async def test_a_conductor_exports_everything_that_is_declared_for_it_and_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path, settings(executions_per_held_out_task=1), held_out=("held-out",)) as job:
        await job.to_the_end()
        told = await page(job)
    assert undeclared(told, "conductor") == []
    not_reported = {metric.family for metric in of("conductor") if f"# TYPE {metric.family} " not in told}
    of_real_trainers = (catalogue.GRADIENT_NORM, catalogue.CLIPPED_TOKENS, catalogue.CAPPED_TOKENS, catalogue.LOGPROB, catalogue.LOGPROB_DIFFERENCE)
    assert not_reported == {metric.name for metric in (*of_real_trainers, catalogue.LEARNING_RATE)}


async def test_counters_are_those_of_the_store_and_are_the_same_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.to_the_end()
        before = await figures(job)
        assert value(before, "tidemill_executions_dispatched_total") == job.rows("SELECT COUNT(*) FROM executions")[0][0]
        assert value(before, "tidemill_executions_started_total") == job.rows("SELECT COUNT(started) FROM executions")[0][0]
        assert value(before, "tidemill_executions", state="Scored") == value(before, "tidemill_executions_terminated_total") == 16
        assert value(before, "tidemill_microsteps", state="Committed") == job.rows("SELECT COUNT(*) FROM microsteps")[0][0]
        assert value(before, "tidemill_groups_trained_total") == 8
        assert value(before, "tidemill_waterlevel") == value(before, "tidemill_executions_lost") == 0
        flips = job.of(FlipEnded)
        for role in Role:
            assert value(before, "tidemill_flip_seconds_count", to=role) == len([f for f in flips if f.to is role])
        assert value(before, "tidemill_flip_seconds_sum", to=Role.TRAINING) == pytest.approx(sum(f.seconds for f in flips if f.to is Role.TRAINING))
        assert value(before, "tidemill_step_seconds_count") == value(before, "tidemill_step") == value(before, "tidemill_steps_planned") == 4
        assert value(before, "tidemill_trained_tokens_total") == sum(e.trained_tokens for e in job.of(StepCommitted))
        await job.kill_conductor()
        await job.start_conductor()
        after = await figures(job)
        lasting = {metric.name for metric in of("conductor") if metric.kind == "counter" or metric.name.startswith("tidemill_staleness")}
        for key, number in before.items():
            if key[0] in lasting or key[0].endswith(("_count", "_sum", "_bucket")):
                assert after[key] == number, key


async def test_what_is_not_trained_is_counted_by_reason(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.behave = lambda execution, attempt: Ended(exit_code=3) if execution == "g1-0" else None
        job.sandboxes.crashes["g2-0"] = 3
        await job.to_the_end()
        told = await figures(job)
        assert value(told, "tidemill_executions_dropped_total", reason="Harness") == 1
        assert value(told, "tidemill_executions_dropped_total", reason="Evaluator") == 1
        assert value(told, "tidemill_attempts_failed_total") >= 2
        assert value(told, "tidemill_groups_dropped_total", reason="TooFewScores") == len(job.of(GroupDropped)) == 2
        assert value(told, "tidemill_execution_seconds_count", outcome="Dropped") == 2


async def test_a_cell_is_shown_as_the_conductor_sees_it(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda tide: tide.started > 0 and all(cell.settled for cell in tide.cells))
        now = await figures(job)
        assert value(now, "tidemill_cell_granted_role", cell="cell-1", role="Rollout") == 1
        assert value(now, "tidemill_cell_granted_role", cell="cell-1", role="Training") == 0
        assert value(now, "tidemill_cell_usable", cell="cell-0") == value(now, "tidemill_cell_settled", cell="cell-0") == 1
        assert 0 <= value(now, "tidemill_cell_silent_seconds", cell="cell-0") < 5
        assert value(now, "tidemill_rollout_capacity") == 8
        assert value(now, "tidemill_waterlevel") == value(now, "tidemill_executions_dispatched_total")
        assert value(now, "tidemill_conditions", kind="DiskSpace") == value(now, "tidemill_job_suspended") == 0
        assert value(now, "tidemill_job_phase", phase="Running") == 1
        job.sandboxes.gate.set()
        await job.to_the_end()


async def test_an_execution_that_nobody_runs_is_lost_unless_the_job_stands_still(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda tide: tide.started == 8)
        assert value(await figures(job), "tidemill_executions_lost") == 0
        known = job.conductor._living.pop("g1-0")
        assert value(await figures(job), "tidemill_executions_lost") == 1
        job.conductor.suspended = True
        assert value(await figures(job), "tidemill_executions_lost") == 0
        job.conductor.suspended, job.conductor._living["g1-0"] = False, known
        job.sandboxes.gate.set()
        await job.to_the_end()


async def test_a_step_that_is_given_back_and_one_that_is_lost_are_told_apart(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        for trainer in job.trainers.values():
            trainer.micro_step_seconds = 0.05
        await job.until(lambda tide: bool(job.trainers["cell-0"].in_hand) or tide.step > 0)
        await job.kill_trainer("cell-0")
        await job.to_the_end()
        told = await figures(job)
        requeued = sum(number for (name, _), number in told.items() if name == "tidemill_microsteps_requeued_total")
        leased = value(told, "tidemill_microsteps_leased_total")
        assert leased == value(told, "tidemill_microsteps", state="Committed") + value(told, "tidemill_microsteps_returned_total") + requeued
        assert requeued > 0


def test_a_line_that_is_no_event_and_a_file_that_cannot_be_read_take_nothing_else_away() -> None:
    step = StepCommitted(
        time=1.0,
        step=1,
        seconds=2.0,
        groups=1,
        executions=2,
        trained_tokens=7,
        mean_score=1.0,
        staleness=0,
        statistics={"loss": 0.5},
        contributions={},
    )
    written = b"\0\0\n" + msgspec.json.encode(step) + b"\n{\n"
    gone = [True]

    def lines(after: int) -> bytes:
        if gone[0]:
            raise FileNotFoundError("metrics.jsonl")
        return written[after:]

    figures = Figures(Registry("conductor", job="tiny"), lines)
    figures.catch_up()
    assert figures.statistics == {}
    gone[0] = False
    figures.catch_up()
    figures.catch_up()
    assert (figures.statistics, figures.trained_tokens) == ({"loss": 0.5}, 7)


def test_early_groups_are_those_that_were_ready_first() -> None:
    assert halves([]) is halves([(1.0, 0.5)]) is None
    found = halves([(10.0, 1.0), (20.0, 0.5), (60.0, 0.0)])
    assert found is not None
    assert found.seconds == {"Early": 10.0, "Late": 40.0}
    assert found.score == {"Early": 1.0, "Late": 0.25}


@given(st.text())
def test_any_text_becomes_one_of_the_declared_reasons(text: str) -> None:
    assert reason_of_execution(text) in catalogue.EXECUTIONS_DROPPED.values["reason"]
    assert reason_of_group(text) in catalogue.GROUPS_DROPPED.values["reason"]


def test_every_way_of_losing_a_lease_is_declared() -> None:
    assert {str(why) for why in Lost} == set(catalogue.MICROSTEPS_REQUEUED.values["reason"])

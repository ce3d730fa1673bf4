"""Whatever dies, fills up or misbehaves, the job ends, and nothing is lost or counted twice."""

import asyncio
import contextlib
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.world import Ended, settings, turn, world
from tidemill.policy.decide import Mode
from tidemill.telemetry.events import ConditionChanged, ExecutionEnded, GroupDropped, JobEnded, JobStarted, read_events
from tidemill.telemetry.roles import FLIPPING, role_spans
from tidemill.wire.cell import CellPhase, Role
from tidemill.wire.conductor import Authority, GrantRequest, JobPhase
from tidemill.wire.gateway import Turns
from tidemill.wire.http import Refused
from tidemill_rollout.conductor import conductor as conductor_module
from tidemill_rollout.conductor import controller, room
from tidemill_rollout.conductor.sandboxes import EvaluatorCrashed


@pytest.mark.parametrize(("mode", "seed"), [(Mode.ELASTIC, 1), (Mode.ELASTIC, 2), (Mode.COLOCATE, 3), (Mode.ASYNC, 4)])
async def test_conductor_and_trainers_are_killed_again_and_again(tmp_path: Path, mode: Mode, seed: int) -> None:
    random = Random(seed)
    how = settings(mode=mode, cells=3, executions_per_held_out_task=2)
    async with world(tmp_path, replace(how, plan=replace(how.plan, groups_per_step=3, steps=6)), held_out=("exam",)) as job:
        for _ in range(12):
            await asyncio.sleep(random.random() * 0.15)
            victim = random.choice(["conductor", "conductor", "cell-0", "cell-1", "cell-2"])
            if victim == "conductor":
                await job.kill_conductor()
                await asyncio.sleep(random.random() * 0.05)
                await job.start_conductor()
            else:
                await job.kill_trainer(victim)
        tide = await job.to_the_end()
        assert tide.phase is JobPhase.SUCCEEDED
        check(job)


async def test_after_a_restart_running_executions_begin_anew_under_the_same_id_and_are_counted_once(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        before = await job.until(lambda t: t.started == 8)
        await job.kill_conductor()
        job.sandboxes.gate.set()
        await job.start_conductor()
        after = await job.to_the_end()
        assert (before.dispatched, after.dispatched, after.started) == (12, 16, 16)
        assert sorted(a for (a,) in job.rows("SELECT attempt FROM executions")) == [1] * 8 + [2] * 8
        assert job.rows("SELECT SUM(failures) FROM executions") == [(0,)]
        assert [e.resumed for e in job.of(JobStarted)] == [False, True]
        check(job)


async def test_after_a_restart_every_cell_has_a_role_in_the_timeline_again_also_one_that_never_flips(tmp_path: Path) -> None:
    async with world(tmp_path, settings(mode=Mode.ASYNC, cells=3)) as job:
        await job.until(lambda t: t.step >= 1)
        await job.kill_conductor()
        await job.start_conductor()
        await job.to_the_end()
        events = list(read_events(job.folder / "metrics.jsonl"))
        restarted = max(e.time for e in events if isinstance(e, JobStarted))
        spans = role_spans(events, events[-1].time)
        roles = {
            cell: {s.role for s in spans if s.cell == cell and s.start >= restarted and s.role != FLIPPING} for cell in ("cell-0", "cell-1", "cell-2")
        }
        assert roles == {"cell-0": {"Training"}, "cell-1": {"Rollout"}, "cell-2": {"Rollout"}}


async def test_a_condition_under_which_the_conductor_was_killed_does_not_hold_for_ever(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.gateway.condition = "the journal's disk is full"
        await job.until(lambda t: "GatewayReady" in t.condition)
        while not job.of(ConditionChanged):  # told, and in the file
            await asyncio.sleep(0.01)
        await job.kill_conductor()
        job.gateway.condition = ""
        await job.start_conductor()
        await job.to_the_end()
        told = [e.text for e in job.of(ConditionChanged) if e.kind == "GatewayReady"]
        assert told == ["the journal's disk is full", ""]


async def test_a_clean_stop_can_be_resumed_and_a_finished_job_stays_finished(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.until(lambda t: t.step >= 1)
        await job.stop_conductor()
        await job.start_conductor()
        await job.to_the_end()
        await job.stop_conductor()
        await job.start_conductor()
        assert (await job.client.tide()).phase is JobPhase.SUCCEEDED
        check(job)


async def test_on_a_full_disk_the_job_pauses_says_so_and_loses_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda t: t.started == 8)
        (pages,) = job.rows("PRAGMA page_count")[0]
        job.store.db.execute(f"PRAGMA max_page_count = {pages}")
        job.sandboxes.turns = lambda turns: job.gateway.keep(
            msgspec.structs.replace(turns, turns=tuple(msgspec.structs.replace(t, context_ids=(1,) * 20000) for t in turns.turns))
        )
        job.sandboxes.gate.set()
        paused = await job.until(lambda t: t.phase is JobPhase.PAUSED)
        assert "conductor.db: database or disk is full" in paused.condition
        assert paused.terminated == 0
        job.store.db.execute("PRAGMA max_page_count = 1000000")
        await job.to_the_end()
        check(job)
        texts = [c.text for c in job.of(ConditionChanged) if c.kind == "StoreWritable"]
        assert "full" in texts[0]
        assert texts[-1] == ""


async def test_nothing_new_is_started_while_the_gateway_cannot_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conductor_module, "GATEWAY_POLL_SECONDS", 0.05)
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda t: t.started == 8)
        job.gateway.condition = "gateway-0.db: disk is full"
        await job.until(lambda t: t.phase is JobPhase.PAUSED)
        job.sandboxes.gate.set()
        tide = await job.until(lambda t: t.terminated == 8)
        assert (tide.started, tide.condition) == (8, "GatewayReady: gateway-0.db: disk is full")
        job.gateway.condition = ""
        await job.to_the_end()
        check(job)


async def test_a_disk_without_room_pauses_the_job_and_what_fails_meanwhile_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda t: t.started == 8)
        monkeypatch.setattr(room, "LEAST_FREE_BYTES", 2**60)
        paused = await job.until(lambda t: t.phase is JobPhase.PAUSED)
        assert paused.condition.startswith(f"DiskSpace: {tmp_path}: its disk has less than ")
        job.sandboxes.behave = lambda execution, attempt: Ended(1) if attempt == 1 else None
        job.sandboxes.crashes = {"g1-0": 2, "g1-1": 5}
        job.sandboxes.gate.set()
        await job.until(lambda _: job.rows("SELECT COUNT(*) FROM executions WHERE state = 'Pending' AND attempt = 2") == [(8,)])
        monkeypatch.setattr(room, "LEAST_FREE_BYTES", 0)
        await job.until(lambda t: t.terminated > 0)
        assert job.rows("SELECT SUM(failures) FROM executions") == [(0,)]
        await job.to_the_end()
        check(job)
        assert [e.execution for e in job.of(ExecutionEnded) if e.dropped] == ["g1-1"]  # its evaluator crashed when there was room again


async def test_an_evaluator_that_crashes_on_a_full_disk_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, settings()) as job:
        evaluations = []

        def fill_up(execution: str, attempt: int) -> float:
            """The disk is full while this one is at work, four times."""
            if execution != "g1-0" or len(evaluations) == 4:
                return 1.0
            evaluations.append(execution)
            monkeypatch.setattr(room, "LEAST_FREE_BYTES", 2**60)
            asyncio.get_running_loop().call_later(0.05, lambda: monkeypatch.setattr(room, "LEAST_FREE_BYTES", 0))
            raise EvaluatorCrashed("No space left on device")

        job.sandboxes.score = fill_up
        await job.to_the_end()
        check(job)
        assert len(evaluations) == 4
        assert [e.execution for e in job.of(ExecutionEnded) if e.dropped] == []


async def test_a_pause_takes_no_time_from_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path, settings(capacity=3, rollouts_per_group=4)) as job:  # two executions of the second group find no place yet
        job.sandboxes.gate.clear()
        await job.until(lambda t: t.started == 6)
        monkeypatch.setattr(room, "LEAST_FREE_BYTES", 2**60)
        await job.until(lambda t: t.phase is JobPhase.PAUSED)
        job.store.db.execute("UPDATE groups SET started = started - 1000")  # the pause was long
        shifted = time.time()
        await job.until(lambda _: job.conductor.last_pass > shifted)
        job.sandboxes.gate.set()
        monkeypatch.setattr(room, "LEAST_FREE_BYTES", 0)
        await job.to_the_end()
        check(job)
        assert [e.dropped for e in job.of(ExecutionEnded) if e.dropped] == []


async def test_a_stop_takes_no_time_from_a_group(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda t: t.started == 8)
        await job.stop_conductor()
        with contextlib.closing(sqlite3.connect(tmp_path / "conductor.db")) as db, db:
            db.execute("UPDATE groups SET started = started - 1000")  # it was stopped overnight
        job.sandboxes.gate.set()
        await job.start_conductor()
        await job.to_the_end()
        check(job)
        assert [e.dropped for e in job.of(ExecutionEnded) if e.dropped] == []


async def test_a_harness_that_never_calls_the_model_is_tried_three_times_and_then_dropped_with_its_reason(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.behave = lambda execution, attempt: Ended(127, log_tail="setting up\nagent: not found\n") if execution == "g1-0" else None
        await job.to_the_end()
        check(job)
        assert [r for r in job.sandboxes.runs if r[0] == "g1-0"] == [("g1-0", 1), ("g1-0", 2), ("g1-0", 3)]
        (end,) = [e for e in job.of(ExecutionEnded) if e.execution == "g1-0"]
        assert end.dropped == "harness never called the model"
        (view,) = [v for v in await job.client.executions() if v.id == "g1-0"]
        assert "ended with code 127, last line: agent: not found" in view.reason
        assert [d.group for d in job.of(GroupDropped)] == [1], "one scored execution cannot be compared"
        assert ("g1-0", 3) in job.sandboxes.runs


async def test_what_a_harness_did_before_it_failed_is_scored(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        keep = job.sandboxes.turns

        def fail(execution: str, attempt: int) -> Ended | None:
            if execution != "g2-0":
                return None
            assert keep is not None
            keep(Turns(execution, attempt, (turn(execution, attempt),)))
            return Ended(-9, timed_out=True)

        job.sandboxes.behave = fail
        await job.to_the_end()
        check(job)
        assert job.rows("SELECT state, attempt, score, turns FROM executions WHERE id = 'g2-0'") == [("Scored", 1, 1.0, 1)]


async def test_an_evaluator_that_crashes_is_asked_again_and_is_never_a_zero(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.crashes = {"g1-0": 2, "g2-0": 3}
        await job.to_the_end()
        check(job)
        assert job.rows("SELECT state, score FROM executions WHERE id = 'g1-0'") == [("Scored", 1.0)]
        assert job.rows("SELECT state, score, reason FROM executions WHERE id = 'g2-0'") == [
            ("Dropped", None, "evaluator failed: tests wrote no reward")
        ]
        assert ("g2-0", 1) in job.sandboxes.discarded


async def test_a_broken_trajectory_is_dropped_not_trained(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        keep = job.sandboxes.turns
        assert keep is not None

        def broken(turns: Turns) -> None:
            if turns.execution == "g1-1":
                turns = msgspec.structs.replace(turns, turns=(msgspec.structs.replace(turns.turns[0], parent="lost"),))
            keep(turns)

        job.sandboxes.turns = broken
        await job.to_the_end()
        check(job)
        (reason,) = job.rows("SELECT reason FROM executions WHERE id = 'g1-1'")[0]
        assert reason == "broken trajectory: execution g1-1: turn t1 continues turn lost, which is not recorded"


async def test_the_groups_time_out_ends_what_is_left_of_it(tmp_path: Path) -> None:
    async with world(tmp_path, settings(group_seconds=0.4, execution_seconds=0.3, cells=3, capacity=1)) as job:
        job.sandboxes.gate.clear()
        dropped = await job.until(lambda t: t.terminated >= 1, seconds=10)
        assert dropped.waterlevel > 0
        reasons = {reason for (reason,) in job.rows("SELECT reason FROM executions WHERE state = 'Dropped'")}
        assert reasons == {"group time-out"}
        assert all(0 < seconds <= 0.3 for seconds in job.sandboxes.deadlines.values())
        job.sandboxes.gate.set()


async def test_a_core_that_fails_for_good_fails_the_job_with_its_reason_and_it_can_be_tried_again(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.until(lambda t: t.step >= 1)
        core = job.agents[0]
        core.stuck = True
        core.state = msgspec.structs.replace(core.state, phase=CellPhase.FAILED, reason="trainer died five times: out of memory")
        tide = await job.to_the_end()
        assert tide.phase is JobPhase.FAILED
        assert tide.condition == "core cell-0 failed for good: trainer died five times: out of memory"
        assert [e.reason for e in job.of(JobEnded)] == [tide.condition]
        await job.stop_conductor()
        core.stuck = False
        core.state = msgspec.structs.replace(core.state, phase=CellPhase.STARTING, reason="")
        await job.start_conductor(retry_failed=True)
        assert (await job.to_the_end()).phase is JobPhase.SUCCEEDED
        assert [len(ids) for ids in job.trainers["cell-0"].weights] == [2, 2, 2, 2]


async def test_a_satellite_that_fails_is_passed_over_and_the_job_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        broken = job.agents[1]
        broken.stuck = True
        broken.state = msgspec.structs.replace(broken.state, phase=CellPhase.FAILED, reason="engine died five times")
        await job.to_the_end()
        check(job)
        assert job.trainers["cell-1"].computed == 0
        assert ("CellReady/cell-1", "cell cell-1 failed: engine died five times") in [(c.kind, c.text) for c in job.of(ConditionChanged)]


async def test_a_flip_that_does_not_end_is_given_up_and_the_cell_serves_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "FLIP_SECONDS", 0.3)
    async with world(tmp_path, settings()) as job:
        core = job.agents[0]
        await job.until(lambda t: any(c.state and c.state.policy_version == 0 for c in t.cells))
        core.stuck = True
        await job.until(lambda t: t.cells[0].granted_role is Role.TRAINING)
        rolled = await job.until(lambda t: t.cells[0].granted_role is Role.ROLLOUT)
        assert rolled.cells[0].granted_epoch == 3
        core.stuck = False
        await job.to_the_end()
        check(job)


async def test_whoever_holds_the_term_decides_flips_until_it_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "TERM_SECONDS", 4.0)
    async with world(tmp_path, settings()) as job:
        term = await job.client.authority(Authority("operator-a"))
        with pytest.raises(Refused, match="operator-a holds term 1"):
            await job.client.authority(Authority("operator-b"))
        tide = await job.until(lambda t: t.ready_groups > 0)
        assert tide.controller == "operator-a"
        assert all(c.granted_role is Role.ROLLOUT for c in tide.cells)
        with pytest.raises(Refused, match="term 0"):
            await job.client.request_grant(GrantRequest("cell-0", Role.TRAINING, 0, tide.sequence))
        await job.until(lambda t: t.waterlevel <= 4)
        await job.client.authority(Authority("operator-a", term.term))
        grant = await job.client.request_grant(GrantRequest("cell-0", Role.TRAINING, term.term, tide.sequence))
        assert (grant.role, grant.epoch, grant.destinations) == (Role.TRAINING, 2, ("cell-1",))
        assert await job.client.request_grant(GrantRequest("cell-0", Role.TRAINING, term.term, tide.sequence)) == grant
        with pytest.raises(Refused, match="returns to rollout at the end of its burst"):
            await job.client.request_grant(GrantRequest("cell-0", Role.ROLLOUT, term.term, tide.sequence))
        await job.to_the_end()  # the term runs out, and the conductor goes on by itself
        check(job)


@pytest.mark.parametrize("trouble", [ValueError("embedded null byte"), RecursionError("too deep"), KeyError("\udcff")])
async def test_what_nobody_has_thought_of_fails_one_execution_and_ends_no_conductor(
    tmp_path: Path, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, settings()) as job:

        def behave(execution: str, attempt: int) -> Ended | None:
            if execution in ("g1-0", "g3-0") and (execution == "g1-0" or attempt == 1):
                raise trouble
            return None

        def score(execution: str, attempt: int) -> float:
            if execution == "g2-0":
                raise trouble
            return float(execution[-1] == "0")

        async def keep(execution: str, attempt: int) -> None:
            raise trouble

        job.sandboxes.behave, job.sandboxes.score, job.sandboxes.discard = behave, score, keep
        tide = await job.to_the_end()
        check(job)
        assert tide.phase is JobPhase.SUCCEEDED
        assert {e.execution: e.dropped for e in job.of(ExecutionEnded) if e.dropped} == {"g1-0": "unexpected", "g2-0": "unexpected"}
        assert job.rows("SELECT id, attempt FROM executions WHERE id IN ('g1-0', 'g2-0', 'g3-0') ORDER BY id") == [
            ("g1-0", 3),
            ("g2-0", 1),
            ("g3-0", 2),
        ]
        assert not job.gateway.open
    told = [record for record in caplog.records if record.message == "an execution met what nobody has thought of"]
    assert {(record.fields["execution"], record.fields["attempt"]) for record in told} >= {("g1-0", 3), ("g2-0", 1), ("g3-0", 1)}
    assert all(record.exc_info and record.exc_info[1] is trouble for record in told)


async def test_a_store_that_is_deleted_under_a_running_job_is_written_anew_and_loses_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda t: t.started == 8)
        for name in ("conductor.db", "conductor.db-wal", "conductor.db-shm"):
            (tmp_path / name).unlink()
        job.sandboxes.gate.set()
        await job.until(lambda t: t.step >= 1)
        await job.kill_conductor()
        await job.start_conductor()
        assert (await job.to_the_end()).phase is JobPhase.SUCCEEDED
        check(job)
        assert [e.resumed for e in job.of(JobStarted)] == [False, True]

"""What of a running job may change: steps, time-outs, the standalone pool. And its events, as the operator reads them."""

from pathlib import Path

import aiohttp
import msgspec
import pytest

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.test_constraints import cell, controlled
from tests.rollout.conductor.world import settings, world
from tidemill.policy.burst import Plan
from tidemill.telemetry.events import JobEnded
from tidemill.wire.conductor import JobPhase, SettingsChange
from tidemill.wire.http import Refused, Rejected


async def test_more_steps_are_trained_without_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.until(lambda t: t.step >= 1)
        async with controlled(job) as term:
            await job.client.change_settings(SettingsChange(term(), steps=6))
        tide = await job.to_the_end()
        assert (tide.phase, tide.step, tide.steps) == (JobPhase.SUCCEEDED, 6, 6)
        assert tide.ended == "all 6 steps are trained"
        job.how = settings(plan=Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=1, steps=6))
        check(job)


async def test_fewer_steps_end_the_job_earlier_but_never_before_what_has_begun(tmp_path: Path) -> None:
    plan = Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=0, steps=40)
    async with world(tmp_path, settings(plan=plan, max_staleness=0)) as job:
        await job.until(lambda t: t.step >= 1)
        async with controlled(job) as term:
            with pytest.raises(Refused, match=r"schedule.steps is 1, but what has begun ends with step \d+; set \d+ or more"):
                await job.client.change_settings(SettingsChange(term(), steps=1))
            await job.client.change_settings(SettingsChange(term(), steps=8))
        tide = await job.to_the_end()
        assert (tide.phase, tide.step) == (JobPhase.SUCCEEDED, 8)


async def test_what_was_dispatched_ahead_for_steps_that_fall_away_is_dropped_by_name_and_nothing_is_lost(tmp_path: Path) -> None:
    plan = Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=2, steps=20)
    async with world(tmp_path, settings(plan=plan, max_staleness=1)) as job:
        await job.until(lambda t: t.burst == 1)
        async with controlled(job) as term:
            await job.client.change_settings(SettingsChange(term(), steps=2))
        assert (await job.to_the_end()).phase is JobPhase.SUCCEEDED
        dropped = job.rows("SELECT DISTINCT reason FROM groups WHERE state = 'Dropped'")
        assert dropped == [("surplus: all 2 steps are trained",)]
        job.how = settings(plan=Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=2, steps=2), max_staleness=1)
        check(job)


async def test_a_change_is_not_forgotten_by_a_conductor_that_starts_again_with_the_old_manifest(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        async with controlled(job) as term:
            await job.client.change_settings(SettingsChange(term(), steps=6, execution_seconds=5.0))
            await job.client.change_settings(SettingsChange(term(), group_seconds=50.0, drop_at_group_timeout=True))
        await job.kill_conductor()
        await job.start_conductor()
        now = job.conductor.settings
        assert (now.plan.steps, now.execution_seconds, now.group_seconds, now.drop_at_group_timeout) == (6, 5.0, 50.0, True)
        assert (await job.to_the_end()).step == 6


async def test_a_new_time_out_holds_for_executions_that_start_afterwards(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.until(lambda t: t.started >= 2)
        async with controlled(job) as term:
            await job.client.change_settings(SettingsChange(term(), execution_seconds=7.0, call_seconds=3.0))
        await job.to_the_end()
        assert job.gateway.call_seconds == {30.0, 3.0}
        deadlines = list(job.sandboxes.deadlines.values())
        assert 7.0 in deadlines
        assert 60.0 in deadlines


async def test_the_standalone_pool_grows_shrinks_and_grows_again_under_new_epochs(tmp_path: Path) -> None:
    async with world(tmp_path, settings(standalone=1)) as job:
        async with controlled(job) as term:
            await job.client.change_settings(SettingsChange(term(), standalone_replicas=3))
            tide = await job.until(lambda t: len(t.cells) == 5)
            assert [c.cell for c in tide.cells if c.standalone] == ["standalone-0", "standalone-1", "standalone-2"]
            assert cell(tide, "standalone-2").granted_epoch == 1
            await job.client.change_settings(SettingsChange(term(), standalone_replicas=0))
            await job.until(lambda t: not any(c.standalone for c in t.cells))
            with pytest.raises(Rejected, match="no such cell"):
                await job.client.report_cell(job.agents[2].state)
            await job.client.change_settings(SettingsChange(term(), standalone_replicas=1))
            tide = await job.until(lambda t: any(c.standalone for c in t.cells))
            assert (cell(tide, "standalone-0").granted_epoch, len(tide.cells)) == (2, 3)
        await job.to_the_end()
        check(job)


async def test_nothing_of_a_job_that_has_ended_is_changed(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.to_the_end()
        async with controlled(job) as term:
            with pytest.raises(Refused, match="it has succeeded, which is final"):
                await job.client.change_settings(SettingsChange(term(), steps=9))
            with pytest.raises(Rejected, match="steps is below 1"):
                await job.client.change_settings(SettingsChange(term(), steps=0))
            with pytest.raises(Rejected, match="call_seconds is not above 0, group_seconds is not above 0"):
                await job.client.change_settings(SettingsChange(term(), call_seconds=0.0, group_seconds=-1.0))


async def test_events_are_read_in_whole_lines_from_any_offset_as_they_come(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        told = b""
        while b'"job-ended"' not in told:
            new = await job.client.events(len(told), wait_seconds=5.0)
            assert not new or new.endswith(b"\n")
            told += new
        assert told == (job.folder / "metrics.jsonl").read_bytes()
        assert [e.phase for e in job.of(JobEnded)] == ["Succeeded"]
        assert await job.client.events(len(told), wait_seconds=0.0) == b""
        with pytest.raises(Rejected, match="begin anew with 0"):
            await job.client.events(len(told) + 1)


async def test_a_body_that_is_no_change_names_the_field(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job, aiohttp.ClientSession() as session:
        body = msgspec.json.encode({"term": 1, "steps": "many"})
        async with session.put(f"{job.client.base_url}/v1/settings", data=body, headers=job.client.headers()) as answer:
            assert answer.status == 400
            assert "`$.steps`" in await answer.text()

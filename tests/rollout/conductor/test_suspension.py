from pathlib import Path

import pytest

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.test_constraints import controlled
from tests.rollout.conductor.world import settings, world
from tidemill.wire.conductor import Suspend
from tidemill.wire.http import Refused


async def test_after_a_suspension_nothing_runs_and_the_next_start_goes_on_at_the_same_step(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.until(lambda t: t.step >= 1)
        job.sandboxes.gate.clear()
        await job.until(lambda t: job.sandboxes.alive > 0)
        async with controlled(job) as term:
            answer = await job.client.suspend(Suspend(term()))
            assert job.sandboxes.alive == 0
            assert answer.queued_executions == job.rows("SELECT COUNT(*) FROM executions WHERE state = 'Pending'")[0][0] > 0
            assert job.rows("SELECT COUNT(*) FROM executions WHERE state = 'Running'") == [(0,)]
            again = await job.client.suspend(Suspend(term()))
            assert again == answer
            tide = await job.until(lambda t: t.suspended)
            ran = len(job.sandboxes.runs)
        job.sandboxes.gate.set()
        await job.kill_conductor()  # every pod is deleted
        assert len(job.sandboxes.runs) == ran
        await job.start_conductor()
        assert (await job.client.tide()).step == tide.step
        await job.to_the_end()
        check(job)


async def test_a_suspension_that_is_taken_back_goes_on_in_the_same_process(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.until(lambda t: t.ready_groups > 0)
        async with controlled(job) as term:
            await job.client.suspend(Suspend(term()))
            await job.client.suspend(Suspend(term(), resume=True))
        await job.to_the_end()
        check(job)


@pytest.mark.parametrize("water", [6, 4, 2, 0])
async def test_wherever_a_job_is_suspended_and_all_its_processes_end_nothing_is_lost_or_counted_twice(tmp_path: Path, water: int) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        await job.until(lambda t: t.burst > 0 and t.waterlevel <= water)
        async with controlled(job) as term:
            await job.client.suspend(Suspend(term()))
        for name in ("cell-0", "cell-1", "cell-2"):
            await job.kill_trainer(name)
        await job.kill_conductor()
        await job.start_conductor()
        await job.to_the_end()
        check(job)


async def test_only_whoever_holds_the_term_may_suspend(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        with pytest.raises(Refused, match="it has expired"):
            await job.client.suspend(Suspend(0))
        await job.to_the_end()
        check(job)

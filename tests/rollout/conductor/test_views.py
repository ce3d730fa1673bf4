from pathlib import Path

import pytest

from tests.rollout.conductor.world import TOKEN, settings, world
from tidemill.wire.cell import CellKind, CellPhase, CellState, Role
from tidemill.wire.conductor import LeaseRequest
from tidemill.wire.http import Rejected


async def test_an_execution_says_why_its_group_is_not_ready(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3, capacity=1)) as job:
        job.sandboxes.gate.clear()
        await job.until(lambda t: t.started == 3)
        views = {view.id: view for view in await job.client.executions()}
        assert views["g2-0"].reason == "group 2 waits for g2-0 Running, g2-1 Pending"
        assert views["g2-1"].state == "Pending"
        job.sandboxes.gate.set()
        await job.to_the_end()
        views = {view.id: view for view in await job.client.executions()}
        assert views["g1-0"].reason == "tests ended; group 1 is Trained (step 1)"


async def test_probes_and_metrics_are_open_to_everybody_and_tell_the_numbers_of_the_tide(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        await job.to_the_end()
        async with job.session.get(f"http://127.0.0.1:{job.port}/healthz") as answer:
            assert answer.status == 200
        async with job.session.get(f"http://127.0.0.1:{job.port}/metrics") as answer:
            text = await answer.text()
        assert 'tidemill_executions_terminated_total{job="tiny"} 16.0\n' in text
        assert 'tidemill_groups{job="tiny",state="Trained"} 8.0\n' in text


async def test_who_is_not_of_this_job_is_refused_by_name(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        stranger = CellState("cell-9", CellKind.SATELLITE, 9, "", CellPhase.READY, Role.ROLLOUT, 1, 4)
        with pytest.raises(Rejected, match="cell cell-9: this job has no such cell"):
            await job.client.report_cell(stranger)
        with pytest.raises(Rejected, match="cell cell-9: this job has no such cell"):
            await job.client.lease(LeaseRequest("cell-9", 1, "a"))
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with job.session.post(f"http://127.0.0.1:{job.port}/v1/leases", data=b'{"cell": 3}', headers=headers) as answer:
            assert answer.status == 400
            assert "not a LeaseRequest" in await answer.text()

"""A cell that does not do what it was told, without having failed: the others wait for it for a while, not until it is taken for dead."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.test_constraints import cell
from tests.rollout.conductor.world import settings, world
from tidemill.telemetry.events import FlipEnded
from tidemill.wire.cell import Role
from tidemill_rollout.conductor import cells


@pytest.mark.parametrize("mute", [False, True], ids=["hangs", "is stopped"])
async def test_a_cell_that_hangs_in_coming_back_keeps_no_other_cell_from_its_flip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mute: bool
) -> None:
    monkeypatch.setattr(cells, "LATE_SECONDS", 0.5)
    how = settings(cells=3)
    async with world(tmp_path, replace(how, plan=replace(how.plan, steps=10))) as job:
        hanging = job.agents[1]
        job.sandboxes.gate.clear()  # the second burst has to be waited for in rollout
        job.sandboxes.waits = lambda execution: execution.startswith(("g5-", "g6-"))

        def hang() -> None:
            hanging.stuck, hanging.mute, hanging.on_return = True, mute, None

        hanging.on_return = hang
        late = await job.until(lambda t: cell(t, "cell-1").late and cell(t, "cell-1").granted_role is Role.ROLLOUT)
        assert cell(late, "cell-1").usable, "it is not taken for dead"
        assert late.step == 2
        job.sandboxes.gate.set()
        await job.until(lambda t: t.step >= 4)
        assert job.conductor.reports.silent_seconds("cell-1", job.conductor.clock()) < cells.SILENT_SECONDS
        hanging.stuck = hanging.mute = False
        await job.until(lambda t: cell(t, "cell-1").settled and not cell(t, "cell-1").late)
        await job.to_the_end()
        assert {f.cell for f in job.of(FlipEnded) if f.to is Role.TRAINING} == {"cell-0", "cell-1", "cell-2"}
        check(job)


async def test_cells_that_come_up_late_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "LATE_SECONDS", 0.5)
    async with world(tmp_path, settings(cells=3, executions_per_held_out_task=2), held_out=("exam",)) as job:
        job.agents[2].stuck = True
        await job.until(lambda t: t.step >= 1)
        job.agents[2].stuck = False
        await job.to_the_end()
        check(job)

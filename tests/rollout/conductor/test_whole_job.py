"""A tiny job to its end, in every mode, with what a job must keep read from its store."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rollout.conductor.checks import check, training_cells_are_a_prefix
from tests.rollout.conductor.world import settings, world
from tidemill.policy.decide import Mode
from tidemill.telemetry.events import EvaluationEnded, FlipEnded, StepCommitted, WeightsLoaded
from tidemill.trajectory.files import read_trajectory
from tidemill.wire.conductor import JobPhase


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("mode", Mode)
async def test_a_job_runs_to_its_end(tmp_path: Path, mode: Mode, streaming: bool) -> None:
    async with world(tmp_path, settings(mode=mode, streaming=streaming, cells=3)) as job:
        tide = await job.to_the_end()
        assert (tide.phase, tide.step, tide.policy_version, tide.waterlevel) == (JobPhase.SUCCEEDED, 4, 2, 0)
        assert tide.dispatched == tide.started == tide.terminated == 16
        check(job)
        if mode is not Mode.COLOCATE:  # there all are granted at once, and acknowledge in any order
            assert training_cells_are_a_prefix(job)
        assert job.sandboxes.most_alive <= 12
        trajectory = read_trajectory(tmp_path / "trajectories" / "g1-0.msgpack")
        assert (trajectory.score, len(trajectory.turns)) == (1.0, 1)
        flips = job.of(FlipEnded)
        if mode is Mode.ASYNC:
            assert [f.cell for f in flips] == ["cell-0"]
        else:
            assert len(flips) >= 2
        loaded = {(e.cell, e.version) for e in job.of(WeightsLoaded)}
        assert {("cell-1", 2), ("cell-2", 2)} <= loaded, "the job waits until the last weights are loaded and verified"


async def test_cells_leave_one_by_one_as_the_water_falls(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=3)) as job:
        job.sandboxes.gate.clear()
        tide = await job.until(lambda t: t.started == 12)
        assert all(c.granted_role == "Rollout" for c in tide.cells)
        job.sandboxes.gate.set()
        await job.to_the_end()
        roles = [(f.cell, f.to) for f in job.of(FlipEnded)]
        assert roles[:2] == [("cell-0", "Training"), ("cell-1", "Training")]
        check(job)


async def test_a_standalone_pool_serves_and_never_trains(tmp_path: Path) -> None:
    async with world(tmp_path, settings(cells=1, standalone=1)) as job:
        await job.to_the_end()
        check(job)
        assert {f.cell for f in job.of(FlipEnded)} == {"cell-0"}


async def test_steps_of_the_last_burst_may_be_fewer(tmp_path: Path) -> None:
    how = settings()
    async with world(tmp_path, replace(how, plan=replace(how.plan, steps=3))) as job:
        await job.to_the_end()
        check(job)


async def test_held_out_tasks_are_measured_before_the_first_burst_and_after_the_last_and_never_trained(tmp_path: Path) -> None:
    async with world(tmp_path, settings(executions_per_held_out_task=3), held_out=("exam", "quiz")) as job:
        await job.to_the_end()
        check(job)
        measured = job.of(EvaluationEnded)
        assert [(e.version, e.executions) for e in measured] == [(0, 6), (2, 6)]
        assert measured[0].mean_score == pytest.approx(1 / 3)
        assert job.rows("SELECT COUNT(*) FROM groups WHERE purpose = 'Evaluate' AND step IS NOT NULL") == [(0,)]
        events = job.events
        first_step = next(n for n, e in enumerate(events) if isinstance(e, StepCommitted))
        assert events.index(measured[0]) < first_step
        assert not any(isinstance(e, StepCommitted) for e in events[events.index(measured[1]) :])


async def test_groups_of_equal_scores_train_nothing_and_hold_nothing_up(tmp_path: Path) -> None:
    async with world(tmp_path, settings()) as job:
        job.sandboxes.score = lambda execution, attempt: 0.5
        await job.to_the_end()
        check(job)
        assert job.trainers["cell-0"].weights == [[]] * 4
        assert {e.trained_tokens for e in job.of(StepCommitted)} == {0}
        assert {e.groups for e in job.of(StepCommitted)} == {2}

"""One pass over the store: everything that can go on, goes on. Called after every change and twice a second; most passes write nothing."""

from __future__ import annotations

from tidemill.wire.cell import Role
from tidemill_rollout.conductor import bursts, controller, evaluation, executions, groups, job, microsteps, steps
from tidemill_rollout.conductor.cells import Cell
from tidemill_rollout.conductor.executions import Execution
from tidemill_rollout.conductor.microsteps import Lost
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database

LAST_LOAD_SECONDS = 120.0
"""How long a finished job waits for its cells to load and verify the last weights."""


def advance(
    db: Database,
    settings: Settings,
    cells: tuple[Cell, ...],
    tasks: tuple[str, ...],
    held_out: tuple[str, ...],
    *,
    decides_flips: bool,
    paused: bool,
    now: float,
    probe: bool = False,
) -> tuple[Execution, ...]:
    """The executions that were started and now need somebody to run them. `probe`: one of them although the job is paused."""
    if job.phase(db)[0] != "Running":
        return ()
    core = next(c for c in cells if c.is_core)
    if core.failed and core.state is not None:
        job.end(db, "Failed", f"core {core.name} failed for good: {core.state.reason or 'its agent gave no reason'}", now)
        return ()
    for cell in cells:
        if cell.lost:
            microsteps.free(db, cell.name, Lost.CELL_LOST)
    microsteps.expire(db, now)
    if not paused:
        groups.time_out(db, settings.group_seconds, now)
    groups.settle(db, now, skip_equal=settings.skip_equal_groups)
    evaluation.end_if_measured(db, now)
    evaluation.begin_if_due(db, settings, held_out, now)
    if evaluation.running(db) is None:
        burst = bursts.current(db) or bursts.begin(db, settings, tasks, now)
        if burst is not None:
            bursts.go_on(db, settings, burst, tasks, now)
            steps.assemble(db, settings, burst, now)
        elif _all_done(db, settings, cells, now):
            job.end(db, "Succeeded", "", now)
            return ()
    controller.roll_back(db, cells, now)
    if decides_flips:
        controller.flip(db, settings, cells, now)
    if paused and not probe:
        return ()
    free = places(cells, evaluation.running(db)) - executions.running(db)
    return executions.start(db, min(free, 1) if paused else free, now)


def places(cells: tuple[Cell, ...], measured_version: int | None) -> int:
    """Executions that may run at once. A measurement waits until every cell that will serve it has loaded the version that is measured. It
    does not wait for one that is late, which joins once it has loaded it too.
    """
    rollout = [c for c in cells if c.usable and not c.late and c.role is Role.ROLLOUT]
    if measured_version is not None and any(not c.serving or c.loaded_version != measured_version for c in rollout):
        return 0
    return sum(c.capacity for c in rollout if c.serving)


def _all_done(db: Database, settings: Settings, cells: tuple[Cell, ...], now: float) -> bool:
    version = bursts.published(db)
    if version is None or bursts.committed_steps(db) < settings.plan.steps:
        return False
    loaded = all(c.serving and c.loaded_version == version.version for c in cells if c.usable and c.role is Role.ROLLOUT)
    return loaded or now - job.note_trained(db, now) > LAST_LOAD_SECONDS

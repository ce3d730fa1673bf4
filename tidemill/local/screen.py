"""The live view of a job on this machine: what the conductor says, as it is drawn."""

from __future__ import annotations

from tidemill.report.live import CellView, Executions, View, flip_words
from tidemill.wire.cell import CellPhase, Role
from tidemill.wire.conductor import CellTide, Tide


def view_of(tide: Tide) -> View:
    return View(
        job=tide.job,
        mode=tide.mode,
        step=tide.step,
        steps=tide.steps,
        burst=tide.burst,
        policy_version=tide.policy_version,
        waterlevel=tide.waterlevel,
        capacity=capacity(tide),
        score=tide.mean_score,
        staleness=tide.staleness_max,
        cells=tuple(_cell(cell) for cell in tide.cells),
        executions=Executions(tide.terminated, tide.started - tide.terminated, tide.dispatched - tide.started, tide.ready_groups),
        condition=tide.condition,
    )


def cell_word(cell: CellTide) -> str:
    """One word for what a cell is doing."""
    if cell.state is None:
        return "Starting"
    if cell.state.phase in (CellPhase.STARTING, CellPhase.FAILED):
        return cell.state.phase.value
    if cell.state.epoch != cell.granted_epoch or cell.state.phase is CellPhase.FLIPPING:
        return "Flipping"
    return cell.state.role.value


def capacity(tide: Tide) -> int:
    """C_R: executions that the cells granted Rollout can serve."""
    return sum(c.capacity for c in tide.cells if c.granted_role is Role.ROLLOUT)


def _cell(cell: CellTide) -> CellView:
    flip = cell.state.last_flip if cell.state else None
    return CellView(
        name=cell.cell,
        word=cell_word(cell),
        epoch=cell.granted_epoch,
        policy_version=cell.state.policy_version if cell.state else -1,
        last_flip=flip_words(flip.to, flip.seconds, flip.calls_in_flight) if flip else "",
    )

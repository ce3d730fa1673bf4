"""What the waterlevel loop does about one reading of a job: pure. The conductor issues epochs; here they are asked for, written down, delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.wire.cell import Role
from tidemill.wire.conductor import CellTide, JobPhase, Tide
from tidemill.wire.rules import wanted
from tidemill_operator.observed import Cell

REPEAT_SECONDS = 5.0
"""An order that is not acknowledged is delivered again after this time. Agents also learn of grants from the conductor."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the conductor for a role: Training, or in the middle of a burst the way back."""

    cell: str
    role: Role = Role.TRAINING


@dataclass(frozen=True, slots=True)
class Carry:
    """A grant that exists: write it into GPUCell.spec if it is not there, then deliver it to the agent if that has not acknowledged it."""

    cell: str
    role: Role
    epoch: int
    write: bool
    url: str  # of the agent; empty when there is nothing to deliver or nobody to deliver it to


@dataclass(frozen=True, slots=True)
class Constrain:
    """Tell the conductor what a person wants of the cell."""

    cell: str
    pin: Role | None
    cordon: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """Suspend the job at the conductor, or (resume) let it go on."""

    resume: bool


type FlipAction = Ask | Carry | Constrain | Hold


def plan_flip(
    tide: Tide,
    cells: Mapping[str, Cell],
    term: int,
    *,
    suspend: bool,
    async_training_cells: int,
    delivered: Mapping[tuple[str, int], float],
    now: float,
) -> tuple[FlipAction, ...]:
    """`delivered`: when an epoch was last delivered to a cell. Without our term only what is granted is carried on."""
    actions: list[FlipAction] = []
    for told in tide.cells:
        cell = cells.get(told.cell)
        if cell is None or cell.deleting:
            continue
        carry = _carry(told, cell, delivered, now)
        if carry is not None:
            actions.append(carry)
        if tide.term == term and (told.pinned, told.cordoned) != (cell.spec.pin, cell.spec.cordon):
            actions.append(Constrain(told.cell, cell.spec.pin, cell.spec.cordon))
    if tide.term != term or tide.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED):
        return tuple(actions)
    if tide.suspended != suspend:
        return (*actions, Hold(resume=not suspend))
    if not suspend and tide.phase is JobPhase.RUNNING:
        actions += [Ask(name, role) for name, role in wanted(tide, async_training_cells) if name in cells]
    return tuple(actions)


def _carry(told: CellTide, cell: Cell, delivered: Mapping[tuple[str, int], float], now: float) -> Carry | None:
    """A spec that is ahead of the conductor is left alone: epochs only grow, so the reading is older than the spec."""
    if cell.spec.epoch > told.granted_epoch:
        return None
    write = cell.spec.epoch < told.granted_epoch
    unheard = told.state is not None and told.state.epoch < told.granted_epoch
    lately = now - delivered.get((told.cell, told.granted_epoch), float("-inf")) < REPEAT_SECONDS
    url = told.state.url if told.state is not None and unheard and not lately else ""
    return Carry(told.cell, told.granted_role, told.granted_epoch, write, url) if write or url else None

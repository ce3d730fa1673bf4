"""A reading of the job as the rules take it: whoever is controller decides with the very code that the conductor checks with."""

from __future__ import annotations

from tidemill.policy import extensions
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import Extension, Rules
from tidemill.policy.tide import CellView, Pin
from tidemill.policy.tide import Tide as PolicyTide
from tidemill.wire.cell import Role
from tidemill.wire.conductor import CellTide, Tide


def wanted(tide: Tide, async_training_cells: int = 1) -> tuple[tuple[str, Role], ...]:
    """The flips that the job's rule wants now: those back to rollout, or when there are none, those into training."""
    rules = Rules(Mode(tide.mode), async_training_cells, frozenset(map(Extension, tide.extensions)))
    reading = for_rules(tide)
    returning = extensions.returning(rules, reading, tide.outlook)
    if returning:
        return tuple((name, Role.ROLLOUT) for name in returning)
    return tuple((name, Role.TRAINING) for name in extensions.leaving(rules, reading, tide.outlook))


def for_rules(tide: Tide) -> PolicyTide:
    return PolicyTide(
        dispatched=tide.dispatched,
        terminated=tide.terminated,
        cells=tuple(view(c) for c in tide.cells if not c.standalone),
        standalone_capacity=sum(c.capacity for c in tide.cells if c.standalone and c.usable and not c.late),
        ready_groups=tide.ready_groups,
        groups_due=tide.groups_due,
    )


def view(cell: CellTide) -> CellView:
    pinned = None if cell.pinned is None else Pin(cell.pinned)
    return CellView(cell.cell, cell.capacity, cell.granted_role is Role.ROLLOUT, cell.settled, cell.usable, pinned, cell.late)

"""Who decides flips, and the flips: into training by the rule of the job's mode, back by the terms of the grant."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.policy import extensions
from tidemill.wire.cell import Role
from tidemill.wire.conductor import Authority, Constraints, Grant, GrantRequest, Term
from tidemill.wire.http import Refused, Rejected
from tidemill_rollout.conductor import bursts, outlook, tide
from tidemill_rollout.conductor import cells as cells_module
from tidemill_rollout.conductor.cells import Cell
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database

TERM_SECONDS = 15.0
"""A holder renews every 5 s; two renewals may get lost."""

FLIP_SECONDS = 600.0
"""A cell that has not acknowledged Training for this long is sent back: far above any measured flip, below what a burst can afford to wait."""


@dataclass(slots=True)
class Holder:
    """Until when the stored term holds. Not stored: after a restart the holder has the full time to show up again."""

    expires: float


def hold_term(db: Database, holder: Holder, request: Authority, now: float) -> Term:
    """Take the next term, or renew the current one.

    Raises:
        Refused: somebody else holds it, or it is no longer the current one.
    """
    row = db.execute("SELECT term, holder FROM job").fetchone()
    if request.term and (request.holder, request.term) != (row["holder"], row["term"]):
        raise Refused(
            f"term {request.term} of {request.holder}: term {row['term']} of {row['holder'] or 'nobody'} is the current one; take a new one"
        )
    if not request.term:
        if held(db, holder, now) and row["holder"] != request.holder:
            raise Refused(f"{row['holder']} holds term {row['term']} for another {holder.expires - now:.0f} s; ask again then")
        db.execute("UPDATE job SET term = term + 1, holder = ?", (request.holder,))
    holder.expires = now + TERM_SECONDS
    (term,) = db.execute("SELECT term FROM job").fetchone()
    return Term(request.holder, term, TERM_SECONDS)


def held(db: Database, holder: Holder, now: float) -> str:
    """Name of whoever decides flips in place of the conductor; empty when nobody does."""
    (name,) = db.execute("SELECT holder FROM job").fetchone()
    return name if now < holder.expires else ""


def check_term(db: Database, holder: Holder, term: int, now: float) -> None:
    """Raises `Refused` when whoever names `term` does not decide now."""
    (current,) = db.execute("SELECT term FROM job").fetchone()
    if term != current or not held(db, holder, now):
        raise Refused(f"term {term}: the current term is {current}{'' if held(db, holder, now) else ', and it has expired'}; take a new one")


def constrain(db: Database, cells: tuple[Cell, ...], name: str, told: Constraints, now: float) -> Grant:
    """Store what a person wants of a cell. One that may not train any longer returns, one that may not serve is told to whom its calls go."""
    cells_module.current_grant(db, name)
    cell = next(c for c in cells if c.name == name)
    if cell.standalone and told.pin is Role.TRAINING:
        raise Rejected(400, f"cell {name}: a standalone cell has no trainer and cannot be pinned to Training; pin one of cell-1, cell-2, ...")
    cells_module.constrain(db, name, told.pin, told.cordon)
    if cell.role is Role.TRAINING and (told.cordon or told.pin is Role.ROLLOUT):
        cells_module.grant(db, name, Role.ROLLOUT, (), now)
    elif told.cordon and not cell.cordoned:
        cells_module.grant(db, name, Role.ROLLOUT, destinations(cells, (name,)), now)
    return cells_module.current_grant(db, name)


def grant_on_request(db: Database, settings: Settings, cells: tuple[Cell, ...], holder: Holder, request: GrantRequest, now: float) -> Grant:
    """The holder of the term asks for a flip; the rule is checked against the counters of this moment.

    Raises:
        Refused: an old term, or the rule says no. The way back is asked for in mid-burst only: a grant of Training ends with its burst.
    """
    check_term(db, holder, request.term, now)
    current = cells_module.current_grant(db, request.cell)
    if request.role is Role.ROLLOUT:
        if request.cell not in may_return(db, settings, cells, now):
            raise Refused(f"cell {request.cell}: returns to rollout at the end of its burst, without a request")
        cells_module.grant(db, request.cell, Role.ROLLOUT, (), now)
        return cells_module.current_grant(db, request.cell)
    if current.role is Role.TRAINING:
        return current
    if request.cell not in may_leave(db, settings, cells, now):
        counts = tide.for_rules(db, settings, cells)
        raise Refused(
            f"cell {request.cell}: mode {settings.mode} does not let it leave rollout now "
            f"(waterlevel {counts.waterlevel}, rollout capacity {counts.rollout_capacity})"
        )
    cells_module.grant(db, request.cell, Role.TRAINING, destinations(cells, (request.cell,)), now)
    return cells_module.current_grant(db, request.cell)


def flip(db: Database, settings: Settings, cells: tuple[Cell, ...], now: float) -> None:
    """Send back whom the rule sends back now; when there is nobody, grant Training to every cell that may have it."""
    returning = may_return(db, settings, cells, now)
    for name in returning:
        cells_module.grant(db, name, Role.ROLLOUT, (), now)
    if returning:
        return
    leaving = may_leave(db, settings, cells, now)
    for name in leaving:
        cells_module.grant(db, name, Role.TRAINING, destinations(cells, leaving), now)


def roll_back(db: Database, cells: tuple[Cell, ...], now: float) -> None:
    """A flip into training that does not come to an end is given up under the next epoch, so that the cell serves again."""
    for cell in cells:
        never_arrived = cell.role is Role.TRAINING and cell.acknowledged_epoch < cell.epoch and cell.state is not None
        if never_arrived and now - cell.granted > FLIP_SECONDS:
            cells_module.grant(db, cell.name, Role.ROLLOUT, (), now)


def end_burst(db: Database, settings: Settings, cells: tuple[Cell, ...], now: float) -> None:
    """Cells return to rollout, except those that the mode keeps. What the next burst dispatches at once counts as dispatched."""
    coming = bursts.groups_of_next_burst(db, settings) * settings.rollouts_per_group
    reading = tide.for_rules(db, settings, cells, about_to_dispatch=coming)
    staying = extensions.staying(settings.rules, reading, settings.plan.groups_per_step, outlook.read(db, settings, cells, now))
    for cell in cells:
        if cell.role is Role.TRAINING and cell.name not in staying:
            cells_module.grant(db, cell.name, Role.ROLLOUT, (), now)


def destinations(cells: tuple[Cell, ...], leaving: tuple[str, ...]) -> tuple[str, ...]:
    """Who takes over the calls in flight: those that stay in rollout longest first, so that a call is not moved again and again; late ones last."""
    staying = [c for c in cells if c.usable and not c.leaving and c.role is Role.ROLLOUT and c.name not in leaving]
    return tuple(c.name for c in sorted(staying, key=lambda c: (c.late, not c.standalone, -c.ordinal)))


def may_leave(db: Database, settings: Settings, cells: tuple[Cell, ...], now: float) -> tuple[str, ...]:
    """Cells that the job's rule lets leave rollout now."""
    return extensions.leaving(settings.rules, tide.for_rules(db, settings, cells), outlook.read(db, settings, cells, now))


def may_return(db: Database, settings: Settings, cells: tuple[Cell, ...], now: float) -> tuple[str, ...]:
    """Cells that the job's rule sends back to rollout in the middle of a burst."""
    return extensions.returning(settings.rules, tide.for_rules(db, settings, cells), outlook.read(db, settings, cells, now))

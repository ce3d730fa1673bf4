"""The micro-step queue: Queued, Leased, Counted, Committed. Each micro-step ends in exactly one gradient sum, whatever dies.

A lease is the right of one incarnation of one cell's trainer to one handing-out of a micro-step. Whatever puts a micro-step back
into the queue ends its lease, so a sum that still holds it is refused as a whole. Counted micro-steps are in the core's sum, which
is lost with the core: then they are queued again.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from enum import StrEnum

import msgspec

from tidemill.trajectory.sequence import Sequence
from tidemill.wire.conductor import Contribution, LeaseIds, MicroStep
from tidemill.wire.http import Refused
from tidemill_rollout.conductor import counters
from tidemill_rollout.conductor.store import Database

LEASE_SECONDS = 600.0
"""Outlives a restart of the conductor. A dead trainer's leases are freed at once when it is restarted, this is for those that never come back."""

_REQUEUE = "UPDATE microsteps SET state = 'Queued', lease = NULL, cell = NULL, epoch = NULL, expires = NULL WHERE "
_SEQUENCES = msgspec.msgpack.Decoder(tuple[Sequence, ...])


class Lost(StrEnum):
    """Why a micro-step is queued again although it was computed or counted, or may have been."""

    EXPIRED = "Expired"
    TRAINER_REPLACED = "TrainerReplaced"
    CELL_LOST = "CellLost"
    CORE_REPLACED = "CoreReplaced"
    NOT_HELD = "NotHeld"  # the answer that leased it got lost


def append(db: Database, step: int, group: int, parts: Many[tuple[Sequence, ...]]) -> None:
    """The micro-steps of one more group, after those of the groups before it."""
    (place,) = db.execute("SELECT COUNT(*) FROM microsteps WHERE step = ?", (step,)).fetchone()
    db.executemany(
        "INSERT INTO microsteps (id, step, place, group_id, state, trained_tokens, sequences) VALUES (?, ?, ?, ?, 'Queued', ?, ?)",
        [
            (f"s{step}-{place + n}", step, place + n, group, sum(s.trained_tokens for s in part), msgspec.msgpack.encode(part))
            for n, part in enumerate(parts)
        ],
    )


def admit(db: Database, cell: str, incarnation: str, is_core: bool) -> None:
    """A trainer asks. A new incarnation frees what the former held; a new core has also lost the sum of everything counted so far.

    Raises:
        Refused: this incarnation has been replaced by a newer one.
    """
    newest = db.execute("SELECT incarnation FROM trainers WHERE cell = ? ORDER BY number DESC LIMIT 1", (cell,)).fetchone()
    if newest is not None and newest["incarnation"] == incarnation:
        return
    if db.execute("SELECT 1 FROM trainers WHERE cell = ? AND incarnation = ?", (cell, incarnation)).fetchone():
        raise Refused(f"cell {cell}: trainer {incarnation} has been replaced by {newest['incarnation']}; it must exit")
    db.execute("INSERT INTO trainers (cell, incarnation) VALUES (?, ?)", (cell, incarnation))
    free(db, cell, Lost.TRAINER_REPLACED)
    if is_core:
        counters.add(db, f"requeued {Lost.CORE_REPLACED}", db.execute(_REQUEUE + "state = 'Counted'").rowcount)


def is_newest(db: Database, cell: str, incarnation: str) -> bool:
    row = db.execute("SELECT incarnation FROM trainers WHERE cell = ? ORDER BY number DESC LIMIT 1", (cell,)).fetchone()
    return row is not None and row["incarnation"] == incarnation


def lease(db: Database, step: int, cell: str, epoch: int, most: int, now: float) -> tuple[MicroStep, ...]:
    """The next Queued micro-steps of `step`, each under a new lease."""
    rows = db.execute("SELECT * FROM microsteps WHERE step = ? AND state = 'Queued' ORDER BY place LIMIT ?", (step, most)).fetchall()
    leased = []
    for row in rows:
        (number,) = db.execute("UPDATE job SET leases = leases + 1 RETURNING leases").fetchone()
        name = f"L{number}"
        db.execute(
            "UPDATE microsteps SET state = 'Leased', lease = ?, cell = ?, epoch = ?, expires = ? WHERE id = ?",
            (name, cell, epoch, now + LEASE_SECONDS, row["id"]),
        )
        leased.append(MicroStep(row["id"], name, step, row["place"], row["group_id"], _SEQUENCES.decode(row["sequences"])))
    return tuple(leased)


def held(db: Database, cell: str) -> frozenset[str]:
    return frozenset(r["lease"] for r in db.execute("SELECT lease FROM microsteps WHERE state = 'Leased' AND cell = ?", (cell,)))


def free(db: Database, cell: str, why: Lost, keep: Many[str] = ()) -> None:
    """Queue again what `cell` holds, except `keep`: its work is lost."""
    _end(db, cell, held(db, cell) - set(keep), f"requeued {why}")


def give_back(db: Database, ids: LeaseIds) -> None:
    """Leases that no longer exist are none of the cell's business any more: nothing happens."""
    _end(db, ids.cell, ids.leases, "returned")


def renew(db: Database, ids: LeaseIds, now: float) -> None:
    """Raises `Refused` when one is lost: the sum that holds it is worth nothing, so renewing the others would not help."""
    lost = sorted(set(ids.leases) - held(db, ids.cell))
    if lost:
        raise Refused(f"cell {ids.cell}: leases {', '.join(lost)} have ended; discard what was computed under them")
    db.executemany("UPDATE microsteps SET expires = ? WHERE lease = ?", [(now + LEASE_SECONDS, lease) for lease in ids.leases])


def expire(db: Database, now: float) -> None:
    counters.add(db, f"requeued {Lost.EXPIRED}", db.execute(_REQUEUE + "state = 'Leased' AND expires <= ?", (now,)).rowcount)


def count(db: Database, step: int, told: Contribution) -> None:
    """All of these are in the core's sum: counted together, or not at all. Telling it again changes nothing.

    Raises:
        Refused: one of them is no longer leased to this cell under this epoch.
    """
    states = {}
    for lease in told.leases:
        row = db.execute("SELECT state, step, cell, epoch FROM microsteps WHERE lease = ?", (lease,)).fetchone()
        states[lease] = row["state"] if row and (row["step"], row["cell"], row["epoch"]) == (step, told.cell, told.epoch) else "ended"
    if all(state in ("Counted", "Committed") for state in states.values()):
        return
    bad = sorted(f"{lease} ({state})" for lease, state in states.items() if state != "Leased")
    if bad:
        raise Refused(f"step {step}: a sum of cell {told.cell} holds leases that cannot be counted: {', '.join(bad)}; discard the whole sum")
    db.executemany("UPDATE microsteps SET state = 'Counted', expires = NULL WHERE lease = ?", [(lease,) for lease in told.leases])


def uncounted(db: Database, step: int) -> int:
    number: int = db.execute("SELECT COUNT(*) FROM microsteps WHERE step = ? AND state IN ('Queued', 'Leased')", (step,)).fetchone()[0]
    return number


def counted(db: Database, step: int) -> int:
    number: int = db.execute("SELECT COUNT(*) FROM microsteps WHERE step = ? AND state = 'Counted'", (step,)).fetchone()[0]
    return number


def commit(db: Database, step: int) -> None:
    """All Counted ones of `step` are in weights that a durable checkpoint holds."""
    db.execute("UPDATE microsteps SET state = 'Committed', sequences = NULL WHERE step = ? AND state = 'Counted'", (step,))


def by_cell(db: Database, step: int) -> dict[str, int]:
    return dict(db.execute("SELECT cell, COUNT(*) FROM microsteps WHERE step = ? GROUP BY cell ORDER BY cell", (step,)).fetchall())


def trained_tokens(db: Database, step: int) -> int:
    number: int = db.execute("SELECT COALESCE(SUM(trained_tokens), 0) FROM microsteps WHERE step = ?", (step,)).fetchone()[0]
    return number


def _end(db: Database, cell: str, leases: Iterable[str], counter: str) -> None:
    sql = _REQUEUE + "state = 'Leased' AND cell = ? AND lease = ?"
    counters.add(db, counter, sum(db.execute(sql, (cell, lease)).rowcount for lease in leases))

"""Groups: dispatched, ready or dropped, assigned to a step, trained."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.telemetry.events import GroupDropped
from tidemill.trajectory.weights import advantages
from tidemill_rollout.conductor import events, executions
from tidemill_rollout.conductor.store import Database

TRAIN = "Train"
EVALUATE = "Evaluate"
LEAST_SCORED = 2
"""Scores are compared with each other: one alone says nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    id: int
    purpose: str
    task: str
    version: int
    state: str

    @property
    def ready(self) -> bool:
        return self.state == "Ready"


def create(db: Database, purpose: str, task: str, version: int, size: int, now: float) -> None:
    """One group with its executions, all Pending."""
    sql = "INSERT INTO groups (purpose, task, version, state, created) VALUES (?, ?, ?, 'Open', ?)"
    group = db.execute(sql, (purpose, task, version, now)).lastrowid
    prefix = "g" if purpose == TRAIN else "e"
    db.executemany(
        "INSERT INTO executions (id, group_id, state, created) VALUES (?, ?, 'Pending', ?)",
        [(f"{prefix}{group}-{place}", group, now) for place in range(size)],
    )


def dispatched(db: Database) -> int:
    """Training groups ever dispatched."""
    return _count(db, "purpose = 'Train'")


def outstanding(db: Database) -> int:
    """Dispatched - trained - dropped."""
    return _count(db, "purpose = 'Train' AND state IN ('Open', 'Ready', 'Assigned')")


def ready(db: Database) -> int:
    return _count(db, "state = 'Ready'")


def waiting(db: Database) -> tuple[Group, ...]:
    """Training groups that are not assigned yet, ready or not: the oldest version first, then whichever was ready first."""
    rows = db.execute("SELECT * FROM groups WHERE purpose = 'Train' AND state IN ('Open', 'Ready') ORDER BY version, ended IS NULL, ended, id")
    return tuple(Group(r["id"], r["purpose"], r["task"], r["version"], r["state"]) for r in rows)


def scores(db: Database, group: int) -> dict[str, float]:
    """Of its scored executions, by their ids, in their order."""
    rows = db.execute("SELECT id, score FROM executions WHERE group_id = ? AND state = 'Scored' ORDER BY rowid", (group,))
    return {row["id"]: row["score"] for row in rows}


def says_nothing(db: Database, group: int) -> bool:
    """All scores are equal: no execution was better than another."""
    values = tuple(scores(db, group).values())
    return not (values and any(advantages(values)))


def settle(db: Database, now: float, *, skip_equal: bool = False) -> None:
    """Open groups whose executions are all final become Ready (or Measured), or are dropped; with `skip_equal` also those that say nothing."""
    rows = db.execute(
        "SELECT g.id, g.purpose, SUM(e.state = 'Scored') AS scored, COUNT(*) AS size FROM groups g JOIN executions e ON e.group_id = g.id "
        "WHERE g.state = 'Open' GROUP BY g.id HAVING SUM(e.state NOT IN ('Scored', 'Dropped')) = 0 ORDER BY g.id"
    ).fetchall()
    for row in rows:
        if row["purpose"] == EVALUATE:
            db.execute("UPDATE groups SET state = 'Measured', ended = ? WHERE id = ?", (now, row["id"]))
        elif row["scored"] >= LEAST_SCORED and skip_equal and says_nothing(db, row["id"]):
            drop(db, row["id"], f"equal scores: of {row['scored']} executions", now)
        elif row["scored"] >= LEAST_SCORED:
            db.execute("UPDATE groups SET state = 'Ready', ended = ? WHERE id = ?", (now, row["id"]))
        else:
            drop(db, row["id"], f"{row['scored']} of {row['size']} executions were scored, {LEAST_SCORED} are needed", now)


def time_out(db: Database, group_seconds: float, now: float) -> None:
    """Executions that wait although their group's time is over are dropped. Those that run have it as their deadline."""
    rows = db.execute(
        "SELECT e.id FROM executions e JOIN groups g ON g.id = e.group_id WHERE g.state = 'Open' AND e.state = 'Pending' AND g.started <= ?",
        (now - group_seconds,),
    ).fetchall()
    for row in rows:
        executions.drop(db, row["id"], "group time-out", now)


def begin_time_anew(db: Database) -> None:
    """The job stood still, or was not there: what has not ended gets its whole time again, from its next execution's start."""
    db.execute("UPDATE groups SET started = NULL WHERE state = 'Open'")


def drop(db: Database, group: int, reason: str, now: float) -> None:
    """The group is not trained. Executions of it that are not final are dropped with it."""
    rows = db.execute("SELECT id FROM executions WHERE group_id = ? AND state NOT IN ('Scored', 'Dropped')", (group,)).fetchall()
    for row in rows:
        executions.drop(db, row["id"], reason, now)
    db.execute("UPDATE groups SET state = 'Dropped', ended = ?, reason = ? WHERE id = ?", (now, reason, group))
    db.execute("DELETE FROM turns WHERE execution IN (SELECT id FROM executions WHERE group_id = ?)", (group,))
    (task,) = db.execute("SELECT task FROM groups WHERE id = ?", (group,)).fetchone()
    events.say(db, GroupDropped(time=now, group=group, task=task, reason=reason))


def assign(db: Database, group: int, step: int) -> None:
    db.execute("UPDATE groups SET state = 'Assigned', step = ? WHERE id = ?", (step, group))


def assigned(db: Database, step: int) -> int:
    return _count(db, f"state = 'Assigned' AND step = {step:d}")


def assigned_to(db: Database, step: int) -> tuple[int, ...]:
    return tuple(row["id"] for row in db.execute("SELECT id FROM groups WHERE state = 'Assigned' AND step = ? ORDER BY id", (step,)))


def trained(db: Database, step: int) -> None:
    """The step is committed; what its groups sampled stays in `trajectories/`."""
    db.execute("DELETE FROM turns WHERE execution IN (SELECT e.id FROM executions e JOIN groups g ON g.id = e.group_id WHERE g.step = ?)", (step,))
    db.execute("UPDATE groups SET state = 'Trained' WHERE step = ? AND state = 'Assigned'", (step,))


def _count(db: Database, condition: str) -> int:
    number: int = db.execute(f"SELECT COUNT(*) FROM groups WHERE {condition}").fetchone()[0]
    return number

"""Executions: Pending, Running, Evaluating, then Scored or Dropped. A change names its attempt; one of an older attempt has no effect."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tidemill.telemetry.events import ExecutionEnded
from tidemill.trajectory.records import Turn
from tidemill.wire.gateway import Turns
from tidemill.wire.http import Rejected
from tidemill_rollout.conductor import events
from tidemill_rollout.conductor.store import Database

MOST_ATTEMPTS = 3
"""Attempts that the infrastructure may fail before the execution is dropped."""


@dataclass(frozen=True, slots=True)
class Execution:
    id: str
    group: int
    purpose: str
    task: str
    dispatched_version: int
    state: str
    attempt: int
    group_started: float | None
    reason: str = ""  # Evaluating: how the harness ended


@dataclass(frozen=True, slots=True)
class Counts:
    """Over the whole job, evaluations included."""

    dispatched: int  # d
    started: int  # p
    terminated: int  # f


def counts(db: Database) -> Counts:
    row = db.execute(
        "SELECT COUNT(*), COUNT(started), COALESCE(SUM(state IN ('Scored', 'Dropped')), 0) FROM executions",
    ).fetchone()
    return Counts(*row)


def in_state(db: Database, state: str) -> tuple[Execution, ...]:
    return _select(db, "e.state = ?", state)


def running(db: Database) -> int:
    number: int = db.execute("SELECT COUNT(*) FROM executions WHERE state = 'Running'").fetchone()[0]
    return number


def one(db: Database, execution: str) -> Execution | None:
    found = _select(db, "e.id = ?", execution)
    return found[0] if found else None


def start(db: Database, free: int, now: float) -> tuple[Execution, ...]:
    """Up to `free` Pending executions become Running, in the order of dispatch."""
    sql = "SELECT id, group_id FROM executions WHERE state = 'Pending' ORDER BY group_id, rowid LIMIT ?"
    chosen = db.execute(sql, (max(0, free),)).fetchall()
    for row in chosen:
        db.execute("UPDATE executions SET state = 'Running', started = COALESCE(started, ?) WHERE id = ?", (now, row["id"]))
        db.execute("UPDATE groups SET started = COALESCE(started, ?) WHERE id = ?", (now, row["group_id"]))
    return tuple(execution for row in chosen if (execution := one(db, row["id"])))


def evaluate(db: Database, execution: str, attempt: int, ended: str = "") -> bool:
    """The harness is dead and its turns are here. False: this attempt no longer counts."""
    sql = "UPDATE executions SET state = 'Evaluating', reason = ? WHERE id = ? AND attempt = ? AND state = 'Running'"
    return db.execute(sql, (ended, execution, attempt)).rowcount == 1


def requeue(db: Database, execution: str, attempt: int, reason: str, now: float) -> None:
    """The infrastructure failed this attempt: the same execution begins anew, or is dropped after too many."""
    row = db.execute("SELECT * FROM executions WHERE id = ? AND attempt = ? AND state = 'Running'", (execution, attempt)).fetchone()
    if row is None:
        return
    if row["failures"] + 1 >= MOST_ATTEMPTS:
        drop(db, execution, reason, now)
        return
    _begin_anew(db, execution)
    db.execute("UPDATE executions SET failures = failures + 1, reason = ? WHERE id = ?", (reason, execution))


def begin_anew(db: Database, execution: str, attempt: int) -> None:
    """This attempt counts for nothing, and not as a failure either."""
    if db.execute("SELECT 1 FROM executions WHERE id = ? AND attempt = ? AND state = 'Running'", (execution, attempt)).fetchone():
        _begin_anew(db, execution)


def requeue_all_running(db: Database) -> None:
    """After a restart: the harnesses died with the process that ran them."""
    for execution in in_state(db, "Running"):
        _begin_anew(db, execution.id)


def score(db: Database, execution: str, attempt: int, value: float, reason: str, now: float, *, trains: bool = True) -> None:
    """Unless it `trains`, others are compared with this score, but of what led to it nothing is trained: nothing was there to be judged."""
    sql = "UPDATE executions SET state = 'Scored', score = ?, reason = ?, ended = ? WHERE id = ? AND attempt = ? AND state = 'Evaluating'"
    if db.execute(sql, (value, reason, now, execution, attempt)).rowcount == 1:
        if not trains:
            db.execute("DELETE FROM turns WHERE execution = ?", (execution,))
        _say_ended(db, execution)


def drop(db: Database, execution: str, reason: str, now: float) -> None:
    sql = "UPDATE executions SET state = 'Dropped', reason = ?, ended = ? WHERE id = ? AND state NOT IN ('Scored', 'Dropped')"
    if db.execute(sql, (reason, now, execution)).rowcount == 1:
        _say_ended(db, execution)


def add_turns(db: Database, told: Turns) -> None:
    """Each turn once, by its id. Those of an older attempt, or of an execution that is over, are acknowledged and forgotten."""
    execution = one(db, told.execution)
    if execution is None:
        raise Rejected(404, f"execution {told.execution}: this job has no such execution")
    if told.attempt != execution.attempt or execution.state in ("Scored", "Dropped"):
        return
    db.executemany(
        "INSERT OR IGNORE INTO turns (execution, id, record) VALUES (?, ?, ?)",
        [(told.execution, turn.id, msgspec.msgpack.encode(turn)) for turn in told.turns if turn.attempt == execution.attempt],
    )


def turns(db: Database, execution: str) -> tuple[Turn, ...]:
    rows = db.execute("SELECT record FROM turns WHERE execution = ? ORDER BY number", (execution,))
    return tuple(msgspec.msgpack.decode(row["record"], type=Turn) for row in rows)


def note_size(db: Database, execution: str, recorded: tuple[Turn, ...]) -> None:
    sampled = sum(t.sampled for t in recorded)
    db.execute("UPDATE executions SET turns = ?, sampled_tokens = ? WHERE id = ?", (len(recorded), sampled, execution))


def _select(db: Database, condition: str, value: str) -> tuple[Execution, ...]:
    rows = db.execute(
        "SELECT e.*, g.purpose, g.task, g.version, g.started AS group_started FROM executions e JOIN groups g ON g.id = e.group_id "
        f"WHERE {condition} ORDER BY e.group_id, e.rowid",
        (value,),
    )
    names = ("id", "group_id", "purpose", "task", "version", "state", "attempt", "group_started", "reason")
    return tuple(Execution(*(row[name] for name in names)) for row in rows)


def _begin_anew(db: Database, execution: str) -> None:
    db.execute("UPDATE executions SET state = 'Pending', attempt = attempt + 1 WHERE id = ?", (execution,))
    db.execute("DELETE FROM turns WHERE execution = ?", (execution,))


def _say_ended(db: Database, execution: str) -> None:
    row = db.execute("SELECT e.*, g.task, g.purpose FROM executions e JOIN groups g ON g.id = e.group_id WHERE e.id = ?", (execution,)).fetchone()
    told = ExecutionEnded(
        time=row["ended"],
        execution=execution,
        group=row["group_id"],
        task=row["task"],
        seconds=row["ended"] - row["started"] if row["started"] is not None else 0.0,
        turns=row["turns"],
        sampled_tokens=row["sampled_tokens"],
        score=row["score"],
        dropped=row["reason"].partition(":")[0] if row["state"] == "Dropped" else "",  # the full text is in the store
        evaluation=row["purpose"] == "Evaluate",
    )
    events.say(db, told)

"""The job's one row: created once, then Running until it Succeeded or Failed."""

from __future__ import annotations

from tidemill.telemetry.events import JobEnded
from tidemill_rollout.conductor import cells, events, executions, groups
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database


class OtherJob(Exception):
    """The work folder holds the store of another job."""


def open_job(db: Database, settings: Settings, now: float, retry_failed: bool = False) -> bool:
    """Create the job, or go on with it: what ran when the process died is queued again. True when it was there before.

    Raises:
        OtherJob: the store was made for a job of another name.
    """
    row = db.execute("SELECT * FROM job").fetchone()
    if row is not None and row["name"] != settings.job:
        raise OtherJob(f"job {settings.job}: the work folder holds job {row['name']}; use another folder")
    if row is None:
        db.execute("INSERT INTO job (only, name, created, phase) VALUES (1, ?, ?, 'Running')", (settings.job, now))
    elif row["phase"] == "Failed" and retry_failed:
        db.execute("UPDATE job SET phase = 'Running', reason = ''")
    cells.create(db, settings.cells, settings.capacity, now)
    cells.resize_pool(db, settings.standalone, settings.capacity, now)
    cells.forget_what_was_told(db)
    executions.requeue_all_running(db)
    groups.begin_time_anew(db)
    return row is not None


def phase(db: Database) -> tuple[str, str]:
    """Running, Succeeded or Failed, and why."""
    row = db.execute("SELECT phase, reason FROM job").fetchone()
    return row["phase"], row["reason"]


def end(db: Database, phase: str, reason: str, now: float) -> None:
    if db.execute("UPDATE job SET phase = ?, reason = ? WHERE phase = 'Running'", (phase, reason)).rowcount == 1:
        events.say(db, JobEnded(time=now, phase=phase, reason=reason))


def note_trained(db: Database, now: float) -> float:
    """When the last weights were published: from then the job only waits for cells to load them."""
    db.execute("UPDATE job SET trained_at = ? WHERE trained_at IS NULL", (now,))
    since: float = db.execute("SELECT trained_at FROM job").fetchone()[0]
    return since


def goes_on(db: Database) -> None:
    """There may be steps to train again."""
    db.execute("UPDATE job SET trained_at = NULL")


def probe(db: Database) -> None:
    """Is the disk still full? SQLite does not write a row that stays the same, so this one changes."""
    db.execute("UPDATE job SET probes = probes + 1")

"""Held-out tasks, measured before the first burst and after the last. Never trained."""

from __future__ import annotations

from tidemill.telemetry.events import EvaluationEnded
from tidemill.telemetry.logs import Log
from tidemill_rollout.conductor import bursts, events, groups
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database

_log = Log(__name__)


def running(db: Database) -> int | None:
    """The policy version that is being measured."""
    row = db.execute("SELECT version FROM evaluations WHERE ended IS NULL").fetchone()
    return None if row is None else int(row["version"])


def begin_if_due(db: Database, settings: Settings, held_out: tuple[str, ...], now: float) -> None:
    version = bursts.published(db)
    if version is None or not held_out or bursts.current(db) is not None:
        return
    if version.step not in (0, settings.plan.steps) or db.execute("SELECT 1 FROM evaluations WHERE version = ?", (version.version,)).fetchone():
        return
    db.execute("INSERT INTO evaluations (version, began) VALUES (?, ?)", (version.version, now))
    for task in held_out:
        groups.create(db, groups.EVALUATE, task, version.version, settings.executions_per_held_out_task, now)


def end_if_measured(db: Database, now: float) -> None:
    version = running(db)
    if version is None or db.execute("SELECT 1 FROM groups WHERE purpose = 'Evaluate' AND state = 'Open'").fetchone():
        return
    db.execute("UPDATE evaluations SET ended = ? WHERE version = ?", (now, version))
    number, mean, dropped = db.execute(
        "SELECT COUNT(e.score), AVG(e.score), SUM(e.state = 'Dropped') FROM executions e JOIN groups g ON g.id = e.group_id "
        "WHERE g.purpose = 'Evaluate' AND g.version = ?",
        (version,),
    ).fetchone()
    db.execute("DELETE FROM turns WHERE execution IN (SELECT e.id FROM executions e JOIN groups g ON g.id = e.group_id WHERE g.purpose = 'Evaluate')")
    if number:
        events.say(db, EvaluationEnded(time=now, version=version, executions=number, mean_score=mean, dropped=dropped))
    else:
        _log.warning("evaluation measured nothing: every execution was dropped", version=version)

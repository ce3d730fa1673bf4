"""What the extensions are told of a real job: measured by it, or predicted from its own durations."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tidemill.policy.forecast import Forecast
from tidemill.policy.outlook import Outlook
from tidemill.wire.cell import Role
from tidemill_rollout.conductor import bursts, groups
from tidemill_rollout.conductor.cells import Cell
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database

LAST_FLIPS = 9
"""Of a direction, whose median is what the next is taken to cost."""

LAST_STEPS = 8
"""Whose computing says how long training takes. Agents change as they learn."""

LAST_EXECUTIONS = 1000
"""Whose durations say how long others will take."""

LONG_SECONDS = 1e6
"""Training that was never measured is taken to be long: then nothing keeps the published rule from deciding."""


@dataclass(frozen=True, slots=True)
class Training:
    """Of the last steps."""

    seconds_per_token: float  # of one cell
    tokens_per_group: float  # trained ones
    share: float  # of what is sampled


def note_training(db: Database, step: int, groups: int, sampled_tokens: int, trained_tokens: int, seconds: float) -> None:
    """`seconds` of computing, of all cells together. A step that trained nothing says nothing."""
    if trained_tokens > 0 and sampled_tokens > 0 and seconds > 0:
        sql = "INSERT OR IGNORE INTO trainings (step, groups, sampled_tokens, trained_tokens, seconds) VALUES (?, ?, ?, ?, ?)"
        db.execute(sql, (step, groups, sampled_tokens, trained_tokens, seconds))


def read(db: Database, settings: Settings, cells: tuple[Cell, ...], now: float) -> Outlook | None:
    """None when no extension asks for it."""
    if not settings.rules.extended:
        return None
    (pending,) = db.execute("SELECT COUNT(*) FROM executions WHERE state = 'Pending'").fetchone()
    ready = groups.ready(db)
    missing = max(0, _groups_to_take(db, settings) - ready)
    backlog, a_group = _backlog(db)
    idle = _idle_cells(db, cells)
    flip = _median(db, Role.TRAINING)
    return Outlook(
        pending=pending,
        backlog_seconds=backlog,
        due_seconds=backlog + missing * a_group,
        next_ready_seconds=_next_ready(db, now) if pending and idle and not backlog else 0.0,
        flip_seconds=flip or 0.0,
        return_seconds=_median(db, Role.ROLLOUT) or flip or 0.0,
        idle_cells=idle,
    )


def _groups_to_take(db: Database, settings: Settings) -> int:
    """That this burst has not given to a step yet."""
    return bursts.groups_due(db, settings) - groups.assigned(db, bursts.committed_steps(db))


def _backlog(db: Database) -> tuple[float, float]:
    """Seconds of one cell for what could be trained now, and for a group of which nothing is known yet."""
    measured = _training(db)
    (queued,) = db.execute("SELECT COALESCE(SUM(trained_tokens), 0) FROM microsteps WHERE state = 'Queued'").fetchone()
    (sampled,) = db.execute(
        "SELECT COALESCE(SUM(e.sampled_tokens), 0) FROM executions e JOIN groups g ON g.id = e.group_id "
        "WHERE g.state = 'Ready' AND e.state = 'Scored'"
    ).fetchone()
    if measured is None:
        return (LONG_SECONDS if queued or sampled else 0.0), LONG_SECONDS
    tokens = queued + sampled * measured.share
    return tokens * measured.seconds_per_token, measured.tokens_per_group * measured.seconds_per_token


def _training(db: Database) -> Training | None:
    row = db.execute(
        "SELECT SUM(groups) AS groups, SUM(sampled_tokens) AS sampled, SUM(trained_tokens) AS trained, SUM(seconds) AS seconds "
        "FROM (SELECT * FROM trainings ORDER BY step DESC LIMIT ?)",
        (LAST_STEPS,),
    ).fetchone()
    if row["trained"] is None:
        return None
    return Training(row["seconds"] / row["trained"], row["trained"] / row["groups"], row["trained"] / row["sampled"])


def _idle_cells(db: Database, cells: tuple[Cell, ...]) -> tuple[str, ...]:
    """In training, with nothing in hand: neither micro-steps nor a sum that is not yet counted."""
    busy = {cell for (cell,) in db.execute("SELECT DISTINCT cell FROM microsteps WHERE state = 'Leased'")}
    return tuple(c.name for c in cells if c.role is Role.TRAINING and c.settled and c.name not in busy)


def _median(db: Database, role: Role) -> float | None:
    rows = db.execute("SELECT seconds FROM flips WHERE role = ? ORDER BY rowid DESC LIMIT ?", (role, LAST_FLIPS)).fetchall()
    return statistics.median(row["seconds"] for row in rows) if rows else None


def _next_ready(db: Database, now: float) -> float:
    """Predicted seconds until another group is ready, whole ones, so that a reading of the job does not change all the time.

    A group is ready with the last of its executions; those that wait for places are taken to last as long as any.
    """
    forecast = _forecast(db)
    longest: dict[int, float] = {}
    for row in db.execute(
        "SELECT e.group_id, g.task, e.started FROM executions e JOIN groups g ON g.id = e.group_id "
        "WHERE g.purpose = 'Train' AND g.state = 'Open' AND g.started IS NOT NULL AND e.state NOT IN ('Scored', 'Dropped')"
    ):
        age = 0.0 if row["started"] is None else now - row["started"]
        left = forecast.remaining_seconds(row["task"], age) or 0.0
        longest[row["group_id"]] = max(left, longest.get(row["group_id"], 0.0))
    return float(round(min(longest.values(), default=0.0)))


def _forecast(db: Database) -> Forecast:
    forecast = Forecast()
    for row in db.execute(
        "SELECT g.task, e.ended - e.started AS seconds FROM executions e JOIN groups g ON g.id = e.group_id "
        "WHERE e.state = 'Scored' AND g.purpose = 'Train' AND e.started IS NOT NULL ORDER BY e.ended DESC LIMIT ?",
        (LAST_EXECUTIONS,),
    ):
        forecast.note(row["task"], row["seconds"])
    return forecast

"""What the store says at one moment, for metrics: read once for all figures of a scrape, and again only when something has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tidemill_rollout.conductor import bursts, counters, executions, groups
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database, Store

_OF_EXECUTIONS = {
    "group time-out": "GroupTimeout",
    "gateway failed": "Gateway",
    "sandbox failed": "Sandbox",
    "harness never called the model": "Harness",
    "broken trajectory": "Trajectory",
    "evaluator failed": "Evaluator",
    "no valid score": "NoScore",
    "stale": "Stale",
    "surplus": "Surplus",
}
_OF_GROUPS = {"stale": "Stale", "surplus": "Surplus", "equal scores": "EqualScores"}


@dataclass(frozen=True, slots=True)
class Halves:
    """The groups of one burst by when they were ready: how long they took, and their mean score."""

    seconds: dict[str, float]
    score: dict[str, float]


@dataclass(frozen=True, slots=True)
class Step:
    """The last committed one."""

    committed: float  # unix seconds
    staleness: int
    staleness_updates: int
    mean_score: float | None


@dataclass(frozen=True, slots=True)
class Books:
    counts: executions.Counts
    executions: dict[str, int]  # by state
    executions_dropped: dict[str, int]  # by reason
    attempts_failed: int
    unfinished: frozenset[str]  # executions that somebody should be running or evaluating
    groups: dict[str, int]  # by state
    groups_dropped: dict[str, int]  # by reason
    groups_due: int
    microsteps: dict[str, int]  # by state
    leases: int
    counters: dict[str, int]
    halves: Halves | None  # of the last burst that has ended
    step: Step | None


class Bookkeeper:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: tuple[Database, int, Settings] | None = None
        self._books: Books | None = None

    def books(self, settings: Settings) -> Books:
        db = self._store.db
        at = (db, db.total_changes, settings)
        if self._books is None or self._read != at:
            self._books, self._read = read(db, settings), at
        return self._books


def read(db: Database, settings: Settings) -> Books:
    (leases,) = db.execute("SELECT leases FROM job").fetchone()
    (failed,) = db.execute("SELECT COALESCE(SUM(failures), 0) FROM executions").fetchone()
    reasons_of_executions = db.execute("SELECT reason, COUNT(*) FROM executions WHERE state = 'Dropped' GROUP BY reason").fetchall()
    reasons_of_groups = db.execute("SELECT reason, COUNT(*) FROM groups WHERE state = 'Dropped' GROUP BY reason").fetchall()
    unfinished = db.execute("SELECT id FROM executions WHERE state IN ('Running', 'Evaluating')").fetchall()
    return Books(
        counts=executions.counts(db),
        executions=dict(db.execute("SELECT state, COUNT(*) FROM executions GROUP BY state").fetchall()),
        executions_dropped=_by(reason_of_execution, reasons_of_executions),
        attempts_failed=failed,
        unfinished=frozenset(row["id"] for row in unfinished),
        groups=dict(db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state").fetchall()),
        groups_dropped=_by(reason_of_group, reasons_of_groups),
        groups_due=bursts.groups_due(db, settings),
        microsteps=dict(db.execute("SELECT state, COUNT(*) FROM microsteps GROUP BY state").fetchall()),
        leases=leases,
        counters=counters.read(db),
        halves=_halves(db),
        step=_last_step(db),
    )


def reason_of_execution(text: str) -> str:
    """Why it was dropped, in one of the declared words."""
    return _OF_EXECUTIONS.get(text.partition(":")[0], "Other")


def reason_of_group(text: str) -> str:
    if text.endswith(f"executions were scored, {groups.LEAST_SCORED} are needed"):
        return "TooFewScores"
    return _OF_GROUPS.get(text.partition(":")[0], "Other")


def halves(trained: Sequence[tuple[float, float]]) -> Halves | None:
    """Of groups' seconds and mean scores in the order in which they were ready; of an odd number the middle one is late."""
    if len(trained) < 2:
        return None
    middle = len(trained) // 2
    parts = {"Early": trained[:middle], "Late": trained[middle:]}
    return Halves({p: fmean(seconds for seconds, _ in g) for p, g in parts.items()}, {p: fmean(score for _, score in g) for p, g in parts.items()})


def _halves(db: Database) -> Halves | None:
    rows = db.execute(
        "SELECT g.ended - MIN(e.started) AS seconds, AVG(e.score) AS score FROM groups g JOIN executions e ON e.group_id = g.id "
        "JOIN steps s ON s.step = g.step "
        "WHERE g.state = 'Trained' AND s.burst = (SELECT MAX(burst) FROM bursts WHERE ended IS NOT NULL) GROUP BY g.id ORDER BY g.ended, g.id"
    ).fetchall()
    return halves([(row["seconds"], row["score"]) for row in rows])


def _last_step(db: Database) -> Step | None:
    row = db.execute("SELECT * FROM steps WHERE committed IS NOT NULL ORDER BY step DESC LIMIT 1").fetchone()
    return None if row is None else Step(row["committed"], row["staleness"], row["staleness_updates"], row["mean_score"])


def _by(word: Callable[[str], str], rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for text, number in rows:
        found[word(text)] += number
    return dict(found)

"""Steps: which ready groups each takes, the micro-steps they become, and the commit."""

from __future__ import annotations

from random import Random

from tidemill.policy import step as policy
from tidemill.policy.staleness import staleness
from tidemill.policy.step import OpenStep
from tidemill.telemetry.events import StepCommitted
from tidemill.trajectory.microsteps import cut
from tidemill.trajectory.paths import sequences_of
from tidemill.trajectory.sequence import Sequence
from tidemill.trajectory.weights import advantages
from tidemill.wire.conductor import Applied
from tidemill.wire.http import Refused
from tidemill_rollout.conductor import bursts, counters, events, executions, groups, microsteps, outlook
from tidemill_rollout.conductor.bursts import Burst
from tidemill_rollout.conductor.groups import Group
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database


def choose(waiting: tuple[Group, ...], assigned: int, places_left: int, burst: Burst, settings: Settings) -> tuple[tuple[Group, ...], bool]:
    """The ready groups that the open step takes now, and whether it is closed then. `waiting` is in the order of preference."""
    open_step = OpenStep(
        assigned=assigned,
        places_left=places_left,
        version=burst.version,
        groups_per_step=settings.plan.groups_per_step,
        groups_per_burst=settings.groups_per_burst,
        bound=settings.max_staleness,
        streaming=settings.streaming,
        drop_stale=settings.drop_stale,
    )
    return policy.choose(waiting, open_step)


def assemble(db: Database, settings: Settings, burst: Burst, now: float) -> None:
    """Give the open step what is ready for it."""
    step = bursts.committed_steps(db)
    row = db.execute("SELECT closed FROM steps WHERE step = ?", (step,)).fetchone()
    if row is None or row["closed"] is not None:
        return
    assigned = groups.assigned(db, step)
    places = burst.places_left(step, assigned, settings.plan.groups_per_step)
    chosen, closed = choose(groups.waiting(db), assigned, places, burst, settings)
    for group in chosen:
        groups.assign(db, group.id, step)
        microsteps.append(db, step, group.id, cut(_sequences(db, group, settings)))
        (dispatched_at,) = db.execute("SELECT step FROM versions WHERE version = ?", (group.version,)).fetchone()
        db.execute(
            "UPDATE steps SET staleness = MAX(staleness, ?), staleness_updates = MAX(staleness_updates, ?) WHERE step = ?",
            (staleness(burst.version, group.version), step - dispatched_at, step),
        )
    if closed:
        db.execute("UPDATE steps SET closed = ? WHERE step = ?", (now, step))


def _sequences(db: Database, group: Group, settings: Settings) -> list[Sequence]:
    """What the group's scored executions are trained on; nothing when their scores are all equal. The same whenever it is computed."""
    scores = groups.scores(db, group.id)
    sequences: list[Sequence] = []
    for execution, advantage in zip(scores, advantages(tuple(scores.values())), strict=True):
        if advantage:
            turns = executions.turns(db, execution)
            random = Random(f"{settings.seed}/{execution}")
            sequences += sequences_of(turns, advantage, settings.executions_per_step, settings.most_paths, random)
    return sequences


def closed(db: Database) -> bool:
    """Whether the open step takes no more groups, or none is open: the burst's last one is committed."""
    row = db.execute("SELECT closed FROM steps WHERE step = ?", (bursts.committed_steps(db),)).fetchone()
    return row is None or row["closed"] is not None


def to_apply(db: Database) -> bool:
    """Whether every micro-step of the open step exists and is counted."""
    step = bursts.committed_steps(db)
    row = db.execute("SELECT closed FROM steps WHERE step = ?", (step,)).fetchone()
    return row is not None and row["closed"] is not None and microsteps.uncounted(db, step) == 0


def commit(db: Database, step: int, told: Applied, now: float) -> bool:
    """The core's checkpoint after `step` is durable. False when it was told before.

    Raises:
        Refused: another step is open, it is not complete, or it was committed with other weights.
    """
    committed = bursts.committed_steps(db)
    row = db.execute("SELECT * FROM steps WHERE step = ?", (step,)).fetchone()
    if row is not None and row["committed"] is not None:
        if row["digest"] == told.digest:
            return False
        raise Refused(f"step {step}: it is committed with weights {row['digest']}, not {told.digest}; load checkpoint {row['checkpoint']}")
    if step != committed or not to_apply(db):
        raise Refused(
            f"step {step}: {committed} steps are committed and {microsteps.uncounted(db, step)} micro-steps of it are not counted; ask for work"
        )
    sizes = db.execute(
        "SELECT COUNT(DISTINCT g.id), COUNT(e.id), AVG(e.score), SUM(e.sampled_tokens) "
        "FROM groups g JOIN executions e ON e.group_id = g.id AND e.state = 'Scored' "
        "WHERE g.step = ? AND g.state = 'Assigned'",
        (step,),
    ).fetchone()
    equal = sum(groups.says_nothing(db, group) for group in groups.assigned_to(db, step))
    counters.add(db, "equal groups", equal)
    microsteps.commit(db, step)
    groups.trained(db, step)
    db.execute(
        "UPDATE steps SET committed = ?, checkpoint = ?, digest = ?, mean_score = ? WHERE step = ?",
        (now, told.checkpoint, told.digest, sizes[2], step),
    )
    db.execute("UPDATE job SET committed_steps = ?", (step + 1,))
    trained_tokens = microsteps.trained_tokens(db, step)
    outlook.note_training(db, step, sizes[0], sizes[3] or 0, trained_tokens, told.statistics.get("computeSeconds", 0.0))
    burst = bursts.current(db)
    if burst is not None and step + 1 < burst.first_step + burst.steps:
        db.execute("INSERT INTO steps (step, burst, opened) VALUES (?, ?, ?)", (step + 1, burst.number, now))
    event = StepCommitted(
        time=now,
        step=step + 1,
        seconds=now - row["opened"],
        groups=sizes[0],
        executions=sizes[1],
        equal_groups=equal,
        trained_tokens=trained_tokens,
        mean_score=sizes[2],
        staleness=row["staleness"],
        staleness_updates=row["staleness_updates"],
        statistics=told.statistics,
        contributions=microsteps.by_cell(db, step),
    )
    events.say(db, event)
    return True


def last_committed(db: Database) -> tuple[int, str, float | None]:
    """Committed steps, checkpoint and mean score of the last."""
    row = db.execute("SELECT * FROM steps WHERE committed IS NOT NULL ORDER BY step DESC LIMIT 1").fetchone()
    return (row["step"] + 1, row["checkpoint"], row["mean_score"]) if row else (0, "", None)


def largest_staleness(db: Database) -> int:
    number: int = db.execute("SELECT COALESCE(MAX(staleness), 0) FROM steps").fetchone()[0]
    return number

"""Bursts and publications: where a burst begins, what it dispatches, when its weights are due, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.policy import burst as policy
from tidemill.policy import refill
from tidemill.policy.staleness import within
from tidemill.telemetry.events import VersionPublished
from tidemill.wire.conductor import Published
from tidemill.wire.http import Refused
from tidemill_rollout.conductor import events, groups, tasks
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database


@dataclass(frozen=True, slots=True)
class Burst:
    number: int  # from 1
    first_step: int
    steps: int
    version: int  # trained on

    def places_left(self, step: int, assigned: int, groups_per_step: int) -> int:
        """Groups it can still take while `step` has `assigned`."""
        return (self.first_step + self.steps - step) * groups_per_step - assigned


def current(db: Database) -> Burst | None:
    row = db.execute("SELECT * FROM bursts WHERE ended IS NULL").fetchone()
    return Burst(row["burst"], row["first_step"], row["steps"], row["version"]) if row else None


def groups_due(db: Database, settings: Settings) -> int:
    """Groups that the present burst still has to train, whether ready or not."""
    burst = current(db)
    return (burst.first_step + burst.steps - committed_steps(db)) * settings.plan.groups_per_step if burst else 0


def committed_steps(db: Database) -> int:
    steps: int = db.execute("SELECT committed_steps FROM job").fetchone()[0]
    return steps


def published(db: Database) -> Published | None:
    """The newest publication."""
    row = db.execute("SELECT * FROM versions ORDER BY version DESC LIMIT 1").fetchone()
    return Published(row["version"], row["step"], row["digest"]) if row else None


def publication_due(db: Database) -> tuple[int, int] | None:
    """Version and step that the core has to publish now: version 0 before anything else, then one at the end of each burst."""
    last = published(db)
    if last is None:
        return 0, 0
    burst = current(db)
    if burst is not None and committed_steps(db) == burst.first_step + burst.steps:
        return last.version + 1, burst.first_step + burst.steps
    return None


def begin(db: Database, settings: Settings, task_names: tuple[str, ...], now: float) -> Burst | None:
    """Open the next burst, drop what is too old for it, and dispatch its groups. None when the job has no steps left."""
    steps = committed_steps(db)
    version = published(db)
    if version is None:
        return None
    if steps >= settings.plan.steps:
        for group in groups.waiting(db):  # where steps were lowered: what a longer job had dispatched ahead
            groups.drop(db, group.id, f"surplus: all {steps} steps are trained", now)
        return None
    number = db.execute("SELECT COUNT(*) FROM bursts").fetchone()[0] + 1
    burst = Burst(number, steps, policy.steps_in_burst(settings.plan, steps), version.version)
    db.execute(
        "INSERT INTO bursts (burst, first_step, steps, version, began) VALUES (?, ?, ?, ?, ?)",
        (burst.number, burst.first_step, burst.steps, burst.version, now),
    )
    db.execute("INSERT INTO steps (step, burst, opened) VALUES (?, ?, ?)", (steps, burst.number, now))
    for group in groups.waiting(db):
        if not within(burst.version, group.version, settings.max_staleness):
            groups.drop(db, group.id, f"stale: dispatched under version {group.version}, now {burst.version}", now)
    dispatch(db, settings, burst, task_names, now)
    return burst


def go_on(db: Database, settings: Settings, burst: Burst, task_names: tuple[str, ...], now: float) -> None:
    """Inside a burst only Refill dispatches."""
    if settings.refill:
        dispatch(db, settings, burst, task_names, now)


def dispatch(db: Database, settings: Settings, burst: Burst, task_names: tuple[str, ...], now: float) -> None:
    step = committed_steps(db)
    places = burst.places_left(step, groups.assigned(db, step), settings.plan.groups_per_step)
    first = groups.dispatched(db)
    for number in range(first, first + groups_to_dispatch(db, settings, places)):
        task = tasks.task_of(number, task_names, settings.seed)
        groups.create(db, groups.TRAIN, task, burst.version, settings.rollouts_per_group, now)


def groups_to_dispatch(db: Database, settings: Settings, places_left: int) -> int:
    """By the rule of the job's dispatch, when the burst can still take `places_left` groups."""
    steps, outstanding = committed_steps(db), groups.outstanding(db)
    if not settings.refill:
        return policy.groups_to_dispatch(settings.plan, steps, outstanding)
    return refill.groups_to_dispatch(settings.plan, steps, outstanding, len(groups.waiting(db)), places_left, settings.max_staleness)


def groups_of_next_burst(db: Database, settings: Settings) -> int:
    """That it dispatches as soon as it begins."""
    places = policy.steps_in_burst(settings.plan, committed_steps(db)) * settings.plan.groups_per_step
    return groups_to_dispatch(db, settings, places)


def publish(db: Database, told: Published, now: float) -> bool:
    """Take in a publication. False when it is known already. Raises `Refused` when it is not the one that is due."""
    last = published(db)
    if last is not None and (told.version, told.digest) == (last.version, last.digest):
        return False
    due = publication_due(db)
    if due != (told.version, told.step):
        wanted = f"version {due[0]} of step {due[1]} is" if due else "nothing is"
        raise Refused(f"publication of version {told.version} of step {told.step}: {wanted} due; ask for work again")
    db.execute("INSERT INTO versions (version, step, digest, published) VALUES (?, ?, ?, ?)", (told.version, told.step, told.digest, now))
    db.execute("UPDATE bursts SET ended = ? WHERE ended IS NULL", (now,))
    events.say(db, VersionPublished(time=now, version=told.version, step=told.step, digest=told.digest))
    return True

"""What of a job changes while it runs: steps, time-outs, the standalone pool, extensions. Stored, because a manifest may be older than that."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tidemill.policy.extensions import REAL, Extension
from tidemill.wire.conductor import SettingsChange
from tidemill.wire.http import Refused, Rejected
from tidemill_rollout.conductor import bursts, cells, job
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database


def change(db: Database, settings: Settings, told: SettingsChange, now: float) -> Settings:
    """The settings from now on.

    Raises:
        Rejected: a value that no job may have.
        Refused: the job has gone past it, or has ended.
    """
    _check(told)
    phase, _ = job.phase(db)
    if phase != "Running":
        raise Refused(f"job {settings.job}: it has {phase.lower()}, which is final; apply a new job, and start it from this one's checkpoint")
    burst = bursts.current(db)
    least = burst.first_step + burst.steps if burst else bursts.committed_steps(db)
    if told.steps is not None and told.steps < least:
        raise Refused(f"job {settings.job}: schedule.steps is {told.steps}, but what has begun ends with step {least}; set {least} or more")
    merged = msgspec.structs.replace(stored(db), **{name: value for name, value in msgspec.structs.asdict(told).items() if value is not None})
    db.execute("INSERT OR REPLACE INTO changes (only, told) VALUES (1, ?)", (msgspec.json.encode(merged).decode(),))
    changed = apply(settings, merged)
    cells.resize_pool(db, changed.standalone, changed.capacity, now)
    job.goes_on(db)
    return changed


def stored(db: Database) -> SettingsChange:
    """All that was ever changed."""
    row = db.execute("SELECT told FROM changes").fetchone()
    return msgspec.json.decode(row["told"], type=SettingsChange) if row else SettingsChange(term=0)


def apply(settings: Settings, told: SettingsChange) -> Settings:
    return replace(
        settings,
        plan=replace(settings.plan, steps=_or(told.steps, settings.plan.steps)),
        standalone=_or(told.standalone_replicas, settings.standalone),
        call_seconds=_or(told.call_seconds, settings.call_seconds),
        execution_seconds=_or(told.execution_seconds, settings.execution_seconds),
        group_seconds=_or(told.group_seconds, settings.group_seconds),
        drop_at_group_timeout=_or(told.drop_at_group_timeout, settings.drop_at_group_timeout),
        extensions=settings.extensions if told.extensions is None else frozenset(map(Extension, told.extensions)),
    )


def _or[T](told: T | None, held: T) -> T:
    return held if told is None else told


def _check(told: SettingsChange) -> None:
    wrong = [
        *(["steps is below 1"] if told.steps is not None and told.steps < 1 else []),
        *(["standalone_replicas is below 0"] if told.standalone_replicas is not None and told.standalone_replicas < 0 else []),
        *(
            f"{name} is not above 0"
            for name in ("call_seconds", "execution_seconds", "group_seconds")
            if (seconds := getattr(told, name)) is not None and seconds <= 0
        ),
        *(f"extension {name} is none that a real job has ({', '.join(sorted(REAL))})" for name in told.extensions or () if name not in REAL),
    ]
    if wrong:
        raise Rejected(400, f"settings: {', '.join(wrong)}")

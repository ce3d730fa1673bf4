"""Where a job stands between its creation and its end: the stage decides what may exist."""

from __future__ import annotations

from enum import Enum, auto

from tidemill.api.status import JobPhase
from tidemill.wire.conductor import JobPhase as ConductorPhase
from tidemill_operator.conditions import find
from tidemill_operator.observed import Observed
from tidemill_operator.times import seconds

STOPPING_SECONDS = 120.0
"""A conductor that cannot be asked is not waited for longer: its store survives a kill, only running executions begin anew."""

HISTORY_SECONDS = 120.0
"""So long the conductor of a job that has ended is kept for its events to be fetched."""


class Stage(Enum):
    INVALID = auto()  # nothing is made
    RUN = auto()
    STOPPING = auto()  # the conductor puts work away; everything stays
    SUSPENDED = auto()  # no pods
    ENDING = auto()  # no cells; the conductor until its events are kept
    ENDED = auto()  # no pods


def stage_of(observed: Observed, now: float) -> Stage:
    job = observed.job
    if ended(observed):
        return Stage.ENDED if _history_is_kept(observed, now) else Stage.ENDING
    if job.model is None:
        return Stage.INVALID
    if not job.model.spec.suspend:
        return Stage.RUN
    return Stage.STOPPING if _must_be_asked(observed, now) else Stage.SUSPENDED


def ended(observed: Observed) -> bool:
    """A terminal phase is never left again, whatever the conductor says later."""
    return observed.job.status.get("phase") in (JobPhase.SUCCEEDED, JobPhase.FAILED)


def outcome(observed: Observed, now: float) -> tuple[JobPhase, str] | None:
    """The terminal phase that the job reaches now, and why; None when it goes on."""
    tide, job = observed.reading.tide, observed.job
    if tide is not None and tide.phase is ConductorPhase.SUCCEEDED:
        return JobPhase.SUCCEEDED, tide.ended or f"step {tide.step}/{tide.steps} is committed and published"
    if tide is not None and tide.phase is ConductorPhase.FAILED:
        return JobPhase.FAILED, tide.ended or tide.condition or "the conductor gave up; its events say why"
    started = seconds(job.status.get("startTime", ""))
    limit = job.model.spec.active_deadline_seconds if job.model else None
    if limit is not None and started and not (job.model and job.model.spec.suspend) and now - started > limit:
        return JobPhase.FAILED, f"it has run for more than activeDeadlineSeconds {limit}"
    return None


def outlived(observed: Observed, now: float) -> bool:
    """Whether a job that has ended is to be deleted now."""
    ttl = observed.job.model.spec.ttl_seconds_after_finished if observed.job.model else None
    completed = seconds(observed.job.status.get("completionTime", ""))
    return ended(observed) and ttl is not None and bool(completed) and now - completed >= ttl


def _must_be_asked(observed: Observed, now: float) -> bool:
    reading = observed.reading
    if reading.suspended or (reading.tide is not None and reading.tide.suspended):
        return False
    alive = any(p.ready for p in observed.of("conductor")) or reading.fresh(now)
    begun = find(observed.job.status, "Suspended")
    if begun.get("reason") == "Stopping" and now - seconds(begun["lastTransitionTime"]) > STOPPING_SECONDS:
        return False
    return alive and begun.get("status") != "True"


def _history_is_kept(observed: Observed, now: float) -> bool:
    if observed.thing("ConfigMap", f"{observed.job.name}-history") is not None:
        return True
    completed = seconds(observed.job.status.get("completionTime", ""))
    return now - completed > HISTORY_SECONDS or not observed.of("conductor")

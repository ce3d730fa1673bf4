"""RLJob status: a function of what is seen now and, for what only history knows (times, best score, past flips), of the status before."""

from __future__ import annotations

from enum import IntEnum

from pydantic import BaseModel, ValidationError

from tidemill.api.status import KEPT_FLIPS, JobPhase, Limit, RLJobStatus
from tidemill.wire.cell import CellPhase, Flip, Role
from tidemill.wire.conductor import CellTide, Tide
from tidemill_operator import lifecycle
from tidemill_operator.addresses import remedy
from tidemill_operator.conditions import Condition, Is, find, kept
from tidemill_operator.lifecycle import Stage
from tidemill_operator.names import Manifest
from tidemill_operator.observed import Observed, Reading
from tidemill_operator.placement import placed_once
from tidemill_operator.problems import problems
from tidemill_operator.times import seconds, stamp

SOON_SECONDS, AT_LEISURE_SECONDS = 1.0, 10.0
_DRIFTING = ("waterlevel", "water", "capacity", "eta", "limitedBy", "staleness", "term")
"""Fields that change all the time: worth a write of their own only now and then."""


class Urgency(IntEnum):
    NONE = 0
    AT_LEISURE = 1
    SOON = 2


def whole(model: type[BaseModel], status: Manifest) -> Manifest:
    """With every field of the model, so that defaults that the API server adds make no difference, and null removes what is no longer so.

    A status that an operator of another version wrote, which the model does not take, counts as none.
    """
    try:
        read = model.model_validate(status)
    except ValidationError:
        read = model()
    return read.model_dump(mode="json", by_alias=True)


def urgency(old: Manifest, new: Manifest) -> Urgency:
    if old == new:
        return Urgency.NONE
    differing = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    return Urgency.AT_LEISURE if differing <= set(_DRIFTING) else Urgency.SOON


def due_at(old: Manifest, new: Manifest, last_written: float) -> float | None:
    """When the status may be written: at most once a second, for drifting numbers alone once in ten. None: there is no need."""
    match urgency(whole(RLJobStatus, old), new):
        case Urgency.NONE:
            return None
        case Urgency.AT_LEISURE:
            return last_written + AT_LEISURE_SECONDS
        case Urgency.SOON:
            return last_written + SOON_SECONDS


def job_status(observed: Observed, stage: Stage, problem: Condition | None, fits: Condition | None, now: float) -> Manifest:
    """`problem` keeps anything from being made: an invalid manifest, a refused template. `fits` is the answer of the memory check."""
    job, old = observed.job, observed.job.status
    ending = None if lifecycle.ended(observed) else lifecycle.outcome(observed, now)
    phase = JobPhase(old["phase"]) if lifecycle.ended(observed) else ending[0] if ending else _phase(observed, stage, problem, now)
    tide = observed.reading.tide
    status: Manifest = {"phase": phase.value, "observedGeneration": job.generation}
    status |= _times(observed, phase, now)
    status |= _progress(observed, tide) if tide is not None else _carried(old)
    new = tuple(_conditions(observed, stage, phase, problem, fits, ending, now))
    status["conditions"] = kept(old.get("conditions") or (), new, job.generation, now)
    if observed.reading.awaited(now) and phase.value == old.get("phase"):
        status |= {key: old[key] for key in ("eta", "limitedBy") if key in old}
    else:
        status |= _eta(status, tide, now) | {"limitedBy": _limit(observed, phase, tide).value}
    return whole(RLJobStatus, status)


def _phase(observed: Observed, stage: Stage, problem: Condition | None, now: float) -> JobPhase:
    tide = observed.reading.tide
    if stage is Stage.INVALID or (problem is not None and problem.type == "Invalid"):
        return JobPhase(observed.job.status["phase"]) if observed.job.status.get("startTime") else JobPhase.INVALID
    if stage is Stage.STOPPING:
        return JobPhase.SUSPENDING
    if stage is Stage.SUSPENDED:
        return JobPhase.SUSPENDED if not observed.pods else JobPhase.SUSPENDING
    if tide is not None and observed.reading.fresh(now) and not tide.suspended:
        return JobPhase(tide.phase.value)
    if not observed.things:
        return JobPhase.PENDING
    former = observed.job.status.get("phase")
    if former not in (JobPhase.RUNNING, JobPhase.PAUSED):
        return JobPhase.STARTING
    return JobPhase(former) if observed.reading.awaited(now) else JobPhase.PAUSED


def _times(observed: Observed, phase: JobPhase, now: float) -> Manifest:
    """As for a Job of the cluster, resuming begins the time anew."""
    old = observed.job.status
    start = old.get("startTime", "")
    if find(old, "Suspended").get("status") == "True" and phase in (JobPhase.STARTING, JobPhase.RUNNING):
        start = stamp(now)
    if not start and (phase is JobPhase.RUNNING or phase.terminal):
        start = stamp(now)
    return {"startTime": start, "completionTime": (old.get("completionTime") or stamp(now)) if phase.terminal else ""}


def _progress(observed: Observed, tide: Tide) -> Manifest:
    old = observed.job.status
    cells = [c for c in tide.cells if c.usable]
    capacity = sum(c.capacity for c in cells if c.standalone or c.granted_role is Role.ROLLOUT)
    best = [s for s in (tide.mean_score, (old.get("scores") or {}).get("best")) if s is not None]
    flips = _flips(observed.reading, tide, old.get("flips") or [])
    return {
        "step": tide.step,
        "progress": f"{tide.step}/{tide.steps}",
        "burst": tide.burst,
        "policyVersion": tide.policy_version,
        "waterlevel": tide.waterlevel,
        "capacity": capacity,
        "water": f"{tide.waterlevel}/{capacity}",
        "cellsInRollout": sum(_in(c, Role.ROLLOUT) for c in tide.cells),
        "cellsInTraining": sum(_in(c, Role.TRAINING) for c in tide.cells),
        "scores": {key: value for key, value in (("last", tide.mean_score), ("best", max(best, default=None))) if value is not None},
        "staleness": tide.staleness_max,
        "term": tide.term,
        "flips": flips,
        "lastFlipSeconds": flips[-1]["seconds"] if flips else None,
    }


def _carried(old: Manifest) -> Manifest:
    """While nobody says anything newer, the last numbers stand."""
    keys = ("step", "progress", "burst", "policyVersion", "waterlevel", "capacity", "water", "cellsInRollout", "cellsInTraining", "scores")
    return {key: old[key] for key in (*keys, "staleness", "term", "flips", "lastFlipSeconds") if key in old}


def _in(cell: CellTide, role: Role) -> bool:
    return cell.state is not None and cell.state.role is role and cell.state.phase is CellPhase.READY


def _flips(reading: Reading, tide: Tide, old: list[Manifest]) -> list[Manifest]:
    known = {(f["cell"], f["epoch"]) for f in old}
    told = {(f.cell, f.epoch): f for f in (*reading.flips, *(c.state.last_flip for c in tide.cells if c.state and c.state.last_flip))}
    new = [{"cell": flip.cell, **flip_status(flip)} for key, flip in told.items() if key not in known]
    return sorted([*old, *new], key=lambda f: (f["time"], f["epoch"], f["cell"]))[-KEPT_FLIPS:]


def flip_status(flip: Flip) -> Manifest:
    return {
        "to": flip.to.value,
        "epoch": flip.epoch,
        "seconds": round(flip.seconds, 3),
        "phases": {name: round(value, 3) for name, value in flip.phases.items()},
        "callsInFlight": flip.calls_in_flight,
        "time": stamp(flip.started + flip.seconds),
    }


def _eta(status: Manifest, tide: Tide | None, now: float) -> Manifest:
    """From the steps so far, start-up included: early it is too long, never too short."""
    begun = seconds(status.get("startTime", ""))
    if tide is None or not tide.step or not begun or status["phase"] != JobPhase.RUNNING:
        return {"eta": ""}
    minutes = int((now - begun) / tide.step * (tide.steps - tide.step) / 60) + 1
    return {"eta": f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}m"}


def _limit(observed: Observed, phase: JobPhase, tide: Tide | None) -> Limit:
    if phase not in (JobPhase.RUNNING, JobPhase.STARTING, JobPhase.PAUSED):
        return Limit.NOTHING
    if any(p.unschedulable or p.gated for p in observed.pods):
        return Limit.PLACEMENT
    if tide is None or phase is not JobPhase.RUNNING:
        return Limit.NOTHING
    if any(c.usable and not c.settled for c in tide.cells):
        return Limit.FLIPS
    return Limit.TRAINING if tide.ready_groups else Limit.ROLLOUT


def _conditions(
    observed: Observed,
    stage: Stage,
    phase: JobPhase,
    problem: Condition | None,
    fits: Condition | None,
    ending: tuple[JobPhase, str] | None,
    now: float,
) -> list[Condition]:
    invalid = problem if problem is not None and problem.type == "Invalid" else Condition("Invalid", Is.FALSE, "Valid")
    found = [invalid]
    if phase is JobPhase.INVALID:
        return found
    if fits is not None:
        found.append(fits)
    if phase.terminal:
        former = find(observed.job.status, "Finished")
        message = ending[1] if ending else former.get("message", "")
        found.append(Condition("Finished", Is.TRUE, phase.value, message))
    if phase is JobPhase.FAILED:
        found.append(Condition("Failed", Is.TRUE, "JobFailed", ending[1] if ending else find(observed.job.status, "Failed").get("message", "")))
    found += [
        _suspended(stage, phase),
        _placed(observed, stage),
        _pods(observed, stage),
        _created(observed, problem),
        _conductor(observed, stage, now),
    ]
    bad = next((c for c in found if c.type in ("Placed", "PodsHealthy", "Created", "ConductorReachable") and c.status is not Is.TRUE), None)
    ready = phase is JobPhase.RUNNING and bad is None
    reason = "Running" if ready else bad.reason if bad else phase.value
    found.append(Condition("Ready", Is.TRUE if ready else Is.FALSE, reason, _why(bad, observed, now)))
    return found


def _why(bad: Condition | None, observed: Observed, now: float) -> str:
    if bad is not None:
        return bad.message
    if observed.reading.awaited(now):
        return str(find(observed.job.status, "Ready").get("message", ""))
    return observed.reading.tide.condition if observed.reading.tide else ""


def _suspended(stage: Stage, phase: JobPhase) -> Condition:
    if stage is Stage.SUSPENDED:
        gone = phase is JobPhase.SUSPENDED
        message = "no pods; set spec.suspend to false to go on at the same step" if gone else "pods are ending"
        return Condition("Suspended", Is.TRUE, "Suspended" if gone else "PodsEnding", message)
    if stage is Stage.STOPPING:
        return Condition("Suspended", Is.UNKNOWN, "Stopping", "the conductor is putting its work away")
    return Condition("Suspended", Is.FALSE, "NotSuspended")


def _placed(observed: Observed, stage: Stage) -> Condition:
    cells = [p for p in observed.of("cell") if not p.deleting]
    never = "Placing" if not placed_once(observed) else "Replacing"
    if stage not in (Stage.RUN, Stage.STOPPING):
        return Condition("Placed", Is.UNKNOWN, never, "there are no pods to place")
    lacking = [p for p in cells if not p.node]
    if cells and not lacking and len(cells) >= _wanted_pods(observed):
        return Condition("Placed", Is.TRUE, "Placed", f"{len(cells)} pods have their nodes")
    waiting = [p for p in lacking if p.unschedulable]
    if waiting:
        more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
        return Condition("Placed", Is.FALSE, never, f"pod {waiting[0].name}{more}: {waiting[0].unschedulable}")
    if any(off.times for off in observed.back_offs.values()):
        return Condition("Placed", Is.FALSE, never, "some pods found no node, so the others gave theirs back; placing is tried again after a pause")
    return Condition("Placed", Is.FALSE, never, f"{len(cells) - len(lacking)} pods have their nodes so far")


def _wanted_pods(observed: Observed) -> int:
    if observed.job.model is None:
        return 0
    cells = observed.job.model.spec.cells
    return cells.count * cells.nodes_per_cell + cells.standalone.replicas * cells.standalone.nodes_per_replica


def _pods(observed: Observed, stage: Stage) -> Condition:
    found = problems(observed.pods) if stage in (Stage.RUN, Stage.STOPPING) else ()
    if not found:
        return Condition("PodsHealthy", Is.TRUE, "AsExpected")
    more = f" (and {len(found) - 1} more pods with problems)" if len(found) > 1 else ""
    return Condition("PodsHealthy", Is.FALSE, found[0].reason, found[0].message + more)


def _created(observed: Observed, problem: Condition | None) -> Condition:
    if problem is not None and problem.type == "Created":
        return problem
    if observed.trouble:
        return Condition("Created", Is.FALSE, "Refused", f"{observed.trouble}{remedy(observed.job.name, observed.trouble)}; it is tried again")
    return Condition("Created", Is.TRUE, "AsExpected")


def _conductor(observed: Observed, stage: Stage, now: float) -> Condition:
    reading = observed.reading
    if stage not in (Stage.RUN, Stage.STOPPING):
        return Condition("ConductorReachable", Is.UNKNOWN, "NotRunning")
    if reading.fresh(now):
        return Condition("ConductorReachable", Is.TRUE, "Answers")
    former = find(observed.job.status, "ConductorReachable")
    if former.get("status") == "True" and reading.awaited(now):
        return Condition("ConductorReachable", Is.TRUE, former["reason"])
    reason = "Starting" if not observed.job.status.get("startTime") else "Silent"
    return Condition("ConductorReachable", Is.FALSE, reason, reading.error or "the conductor has not answered yet")

"""A job on a cluster as it is drawn. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.api.conditions import Condition
from tidemill.api.flip import FlipStatus
from tidemill.api.status import JobPhase, Limit
from tidemill.cluster.api import Object
from tidemill.cluster.objects import Cell, Job
from tidemill.report.live import CellView, View, flip_words
from tidemill.wire.cell import CellPhase

LIMITS = {
    Limit.ROLLOUT: "Rollout: agents are at work; no cell can be spared",
    Limit.TRAINING: "Training: groups are ready and wait for the trainer",
    Limit.FLIPS: "Flips: cells are changing role",
    Limit.PLACEMENT: "Placement: pods have no nodes yet",
}

BAD_WHEN_TRUE = ("Invalid", "Failed", "EpochAhead")
BAD_WHEN_FALSE = ("HostMemoryFits", "Placed", "PodsHealthy", "Created", "ConductorReachable")
SUM = "Ready"
"""Of the others: it is told only where none of them is."""

REMEDIES = {
    "Created": "often a quota, Pod Security or an admission policy: change it or the job",
    "ConductorReachable": "the job goes on by itself; look at pod {job}-conductor-0, and whether a NetworkPolicy of yours is in the way",
    "Placed": "free or add nodes, or lower cells.count, gpusPerNode or resources",
}
"""Where the message of a condition alone does not say what to do."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A condition that is not fine."""

    about: str  # "" for the job, else the cell
    type: str
    reason: str
    message: str
    remedy: str
    since: str


def view_of(job: Job, cells: tuple[Cell, ...], *, with_phases: bool = False) -> View:
    status = job.status
    step, _, steps = status.progress.partition("/")
    first = next(iter(complaints(job, ())), None)
    return View(
        job=f"{job.name}  {job.namespace}",
        mode=job.mode,
        phase="Deleting" if job.deleting else status.phase.value,
        step=int(step) if step.isdigit() else status.step,
        steps=int(steps) if steps.isdigit() else job.steps,
        burst=status.burst,
        policy_version=status.policy_version,
        waterlevel=status.waterlevel,
        capacity=status.capacity,
        score=status.scores.last,
        staleness=status.staleness,
        cells=tuple(_cell(cell, job.status.phase, with_phases) for cell in cells),
        limited_by=LIMITS.get(status.limited_by, ""),
        eta=status.eta,
        condition=f"{first.type}, {first.reason}: {first.message}" if first else "",
    )


def as_document(job: Job, cells: tuple[Cell, ...]) -> Object:
    """For programs: the objects' own fields, and what is not fine."""
    return {
        "name": job.name,
        "namespace": job.namespace,
        "mode": job.mode,
        "suspend": job.suspend,
        "deleting": job.deleting,
        "status": job.status.model_dump(mode="json", by_alias=True),
        "cells": [
            {
                "name": cell.name,
                "kind": cell.kind.value,
                "role": cell.granted_role.value,
                "epoch": cell.granted_epoch,
                "pin": cell.pin.value if cell.pin else None,
                "cordon": cell.cordon,
                "word": cell_word(cell, job.status.phase),
                "status": cell.status.model_dump(mode="json", by_alias=True),
            }
            for cell in cells
        ],
        "notFine": [
            {"cell": c.about, "type": c.type, "reason": c.reason, "message": c.message, "remedy": c.remedy, "since": c.since}
            for c in complaints(job, cells)
        ],
    }


def cell_word(cell: Cell, phase: JobPhase) -> str:
    """One word for what a cell is doing."""
    status = cell.status
    if phase is JobPhase.SUSPENDED or phase.terminal or not status.pods:
        return "No pods"
    if status.phase in (CellPhase.STARTING, CellPhase.FAILED, CellPhase.LEAVING) or status.role is None:
        return status.phase.value
    # The conductor may be ahead of spec, when it decides by itself; a cell is never.
    if status.phase is CellPhase.FLIPPING or status.epoch < cell.granted_epoch:
        return "Flipping"
    return status.role.value


def phases(flip: FlipStatus) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in flip.phases.items())


def complaints(job: Job, cells: tuple[Cell, ...]) -> tuple[Complaint, ...]:
    """Conditions that are not fine, of the job and then of its cells."""
    if job.status.phase is JobPhase.SUCCEEDED:
        return ()
    of_job = [c for c in job.status.conditions if _bad(c)]
    if not of_job and not job.suspend and not job.ended:
        of_job = [c for c in job.status.conditions if c.type == SUM and c.status != "True" and c.message]
    found = [_complaint("", c, job.name) for c in of_job]
    for cell in cells if not (job.ended or job.suspend) else ():
        worst = [c for c in cell.status.conditions if c.type in BAD_WHEN_TRUE and c.status == "True"]
        worst = worst or [c for c in cell.status.conditions if c.type == SUM and c.status != "True" and c.message]
        found += [_complaint(cell.name, c, job.name) for c in worst]
    return tuple(found)


def _bad(condition: Condition) -> bool:
    if condition.type in BAD_WHEN_TRUE:
        return condition.status == "True"
    return condition.type in BAD_WHEN_FALSE and condition.status == "False"  # Unknown: nothing can be said yet, or any more


def _complaint(about: str, condition: Condition, job: str) -> Complaint:
    remedy = REMEDIES.get(condition.type, "").format(job=job)
    return Complaint(about, condition.type, condition.reason, condition.message, remedy, condition.last_transition_time)


def _cell(cell: Cell, phase: JobPhase, with_phases: bool) -> CellView:
    status = cell.status
    flip = status.last_flip
    remarks = [f"pinned to {cell.pin.value}"] if cell.pin else []
    if cell.cordon:
        remarks.append("cordoned")
    return CellView(
        name=cell.name,
        word=cell_word(cell, phase),
        epoch=max(cell.granted_epoch, status.epoch),
        policy_version=status.policy_version,
        last_flip=_flip(flip, with_phases) if flip else "",
        node=status.node,
        remarks=f"({', '.join(remarks)})" if remarks else "",
    )


def _flip(flip: FlipStatus, with_phases: bool) -> str:
    words = flip_words(flip.to.value, flip.seconds, flip.calls_in_flight)
    return f"{words} ({phases(flip)})" if with_phases and flip.phases else words

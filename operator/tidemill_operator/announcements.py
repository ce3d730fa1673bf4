"""Events about a job: what changed between two statuses, said once, in the pass that writes the new one."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill_operator.actions import Event, EventKind
from tidemill_operator.names import Manifest
from tidemill_operator.observed import Job

GOOD = {"Placed", "PodsHealthy", "Created", "ConductorReachable", "HostMemoryFits", "Ready"}
"""Condition types that are True when all is well; the others are True when something is the matter."""

_SPOKEN = {"Invalid", "HostMemoryFits", "Created", "PodsHealthy", "Placed", "Failed", "ConductorReachable"}


def announced(job: Job, new: Manifest) -> Iterator[Event]:
    old = job.status
    if new["phase"] != old.get("phase"):
        kind = EventKind.WARNING if new["phase"] in ("Failed", "Invalid") else EventKind.NORMAL
        yield _event(job, kind, f"Job{new['phase']}", f"phase {old.get('phase') or 'none'} -> {new['phase']}{_of(new)}")
    before = {c["type"]: c for c in old.get("conditions") or ()}
    for condition in new["conditions"]:
        if condition["type"] in _SPOKEN:
            yield from _of_condition(job, before.get(condition["type"], {}), condition)
    known = {(f["cell"], f["epoch"]) for f in old.get("flips") or ()}
    for flip in new.get("flips") or ():
        if (flip["cell"], flip["epoch"]) not in known:
            moved = f", {flip['callsInFlight']} answers went on elsewhere" if flip["callsInFlight"] else ""
            text = f"{flip['cell']} -> {flip['to']} under epoch {flip['epoch']} in {flip['seconds']:.2f} s{moved}"
            yield _event(job, EventKind.NORMAL, "CellFlipped", text)


def _of_condition(job: Job, old: Manifest, new: Manifest) -> Iterator[Event]:
    wrong = "False" if new["type"] in GOOD else "True"
    starting = new["reason"] in ("Starting", "Placing") and not new["message"].startswith("pod ")
    if new["status"] == wrong and (old.get("status"), old.get("reason")) != (wrong, new["reason"]) and not starting:
        yield _event(job, EventKind.WARNING, new["reason"], f"{new['type']}: {new['message']}")
    elif old.get("status") == wrong and new["status"] != wrong and old.get("reason") not in ("Starting", "Placing"):
        yield _event(job, EventKind.NORMAL, f"{new['type']}Again" if new["type"] in GOOD else f"No{new['type']}More", f"{old['reason']} is over")


def _of(status: Manifest) -> str:
    finished = next((c["message"] for c in status["conditions"] if c["type"] == "Finished"), "")
    return f": {finished}" if finished else ""


def _event(job: Job, kind: EventKind, reason: str, message: str) -> Event:
    return Event(job.ref, job.uid, kind, reason, message[:1000])

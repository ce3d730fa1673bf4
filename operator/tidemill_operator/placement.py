"""Whose pods are made, whose places are given back. Two half-placed jobs must not wait for each other.

Before all cells of a job were placed once, the job is one gang: a core alone would hold a node and never train. Afterwards each cell is.
A gang that holds some places and lacks others for `placementSeconds` deletes all its pods and waits, longer each time, before it tries again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemill_operator.conditions import find
from tidemill_operator.observed import BackOff, Node, Observed, Pod

LONGEST_WAIT_SECONDS = 3600.0
YOUNGEST_REPLACED_SECONDS = 10.0
"""A pod that a node refuses outright is not made anew more often than this."""

WHOLE_JOB = ""


@dataclass(frozen=True, slots=True)
class HalfPlaced:
    gang: str
    pods: tuple[Pod, ...]
    back_off: BackOff


def placed_once(observed: Observed) -> bool:
    """Whether all cells had their nodes at one time. Kept in the reason of the condition Placed."""
    condition = find(observed.job.status, "Placed")
    return condition.get("status") == "True" or condition.get("reason") == "Replacing"


def waiting(observed: Observed, cell: str, now: float) -> float:
    """Until when nothing of this cell is made; 0: it may be made now."""
    offs = (observed.back_offs.get(gang) for gang in (WHOLE_JOB, cell))
    return max((off.until for off in offs if off and off.until > now), default=0.0)


def half_placed(observed: Observed, placement_seconds: float, now: float) -> Iterator[HalfPlaced]:
    for gang, pods in _gangs(observed):
        lacking = [p for p in pods if p.unschedulable]
        if not lacking or len(lacking) == len(pods):
            continue  # complete, or holds nothing that another could use
        times = observed.back_offs[gang].times if gang in observed.back_offs else 0
        patience = placement_seconds * (1 + jitter(observed.job.uid, gang, times))
        if now - min(p.created for p in pods) >= patience:
            pause = min(LONGEST_WAIT_SECONDS, placement_seconds * 2.0**times * (1 + jitter(observed.job.uid, gang, times + 1)))
            yield HalfPlaced(gang, tuple(pods), BackOff(times + 1, now + pause))


def settled_gangs(observed: Observed) -> Iterator[str]:
    """Gangs that have all their places, and need not remember that they once had not."""
    for gang, pods in _gangs(observed):
        if gang in observed.back_offs and pods and all(p.node for p in pods):
            yield gang


def lost(pods: Iterable[Pod], nodes: tuple[Node, ...], node_loss_seconds: float, now: float) -> Iterator[tuple[Pod, str]]:
    """Pods that will not come back by themselves, with the reason: their node is away, or refused or evicted them."""
    known = {n.name: n for n in nodes}
    for pod in pods:
        node = known.get(pod.node)
        # A pod may be seen on a new node before that node is.
        if pod.node and node is None and known and now - pod.created >= node_loss_seconds:
            yield pod, f"node {pod.node} is gone"
        elif node is not None and not node.ready and now - node.since >= node_loss_seconds:
            yield pod, f"node {pod.node} has not been ready for {now - node.since:.0f} s"
        elif pod.phase in ("Failed", "Succeeded") and not pod.deleting and now - pod.created >= YOUNGEST_REPLACED_SECONDS:
            yield pod, f"it is {pod.phase}{f' ({pod.disrupted})' if pod.disrupted else ''}"


def jitter(*parts: object) -> float:
    """In [0, 1), the same for the same parts: so that two jobs do not give back and try again in step."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6]) / 2**48


def _gangs(observed: Observed) -> Iterator[tuple[str, list[Pod]]]:
    pods = [p for p in observed.of("cell") if not p.deleting and not p.gated]
    if not placed_once(observed):
        yield WHOLE_JOB, pods
        return
    for cell in sorted({p.cell for p in pods}):
        yield cell, [p for p in pods if p.cell == cell]

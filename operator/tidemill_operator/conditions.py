"""Conditions: recomputed at each pass, with the time of the last change kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tidemill_operator.names import Manifest
from tidemill_operator.times import stamp

LONGEST_MESSAGE = 4000


class Is(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: Is
    reason: str
    message: str = ""


def kept(old: Iterable[Manifest], new: Iterable[Condition], generation: int, now: float) -> list[Manifest]:
    """The new conditions as the status holds them. A transition is a change of `status`; a new reason or message alone is none."""
    before = {c["type"]: c for c in old}
    result = []
    for condition in new:
        former = before.get(condition.type, {})
        unchanged = former.get("status") == condition.status.value
        result.append(
            {
                "type": condition.type,
                "status": condition.status.value,
                "reason": condition.reason,
                "message": condition.message[:LONGEST_MESSAGE],
                "observedGeneration": generation,
                "lastTransitionTime": former["lastTransitionTime"] if unchanged else stamp(now),
            }
        )
    return result


def find(status: Manifest, kind: str) -> Manifest:
    """The condition of this type, or an empty mapping."""
    return next((c for c in status.get("conditions") or () if c["type"] == kind), {})

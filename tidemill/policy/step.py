"""Which ready groups an optimizer step takes, and when it is closed. The conductor and the simulator both call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill.policy.staleness import may_take


class Waiting(Protocol):
    """A group that no step has taken yet."""

    @property
    def version(self) -> int:
        """It was dispatched under."""
        ...

    @property
    def ready(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class OpenStep:
    """What the rule needs to know of the step that is open."""

    assigned: int  # groups it has taken already
    places_left: int  # groups that this burst can still take, in this step and those after it
    version: int  # trained on
    groups_per_step: int  # B
    groups_per_burst: int  # mu * B
    bound: int  # largest staleness, in publications
    streaming: bool = True
    drop_stale: bool = False


def choose[G: Waiting](waiting: Sequence[G], step: OpenStep) -> tuple[tuple[G, ...], bool]:
    """The ready groups that the open step takes now, and whether it is closed then: full, or nothing more can come.

    `waiting` is in the order of preference. With streaming a step takes each group as it becomes ready, without it all of them at once.
    """
    chosen: list[G] = []
    left = list(waiting)
    while step.assigned + len(chosen) < step.groups_per_step:
        group = _first_that_fits(left, step, step.places_left - len(chosen))
        if group is None:
            break
        left.remove(group)
        chosen.append(group)
    closed = step.assigned + len(chosen) == step.groups_per_step or not left
    return (tuple(chosen) if step.streaming or closed else ()), closed


def _first_that_fits[G: Waiting](left: Sequence[G], step: OpenStep, places: int) -> G | None:
    if step.drop_stale:
        return next((g for g in left if g.ready), None)
    versions = [g.version for g in left]
    refused: set[int] = set()  # one version is as good as another of the same
    for group in left:
        if not group.ready or group.version in refused:
            continue
        if may_take(group.version, versions, version=step.version, bound=step.bound, places=places, groups_per_burst=step.groups_per_burst):
            return group
        refused.add(group.version)
    return None

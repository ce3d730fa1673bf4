"""Staleness of a sample: the version it is trained on minus the version it was dispatched under, in publications."""

from __future__ import annotations

import math
from collections.abc import Sequence


def default_bound(prefetch_steps: int, steps_per_burst: int) -> int:
    """ceil(phi / mu): boundary dispatch never has more groups outstanding than this many later bursts can train."""
    return math.ceil(prefetch_steps / steps_per_burst)


def staleness(policy_version: int, dispatched_version: int) -> int:
    return policy_version - dispatched_version


def within(policy_version: int, dispatched_version: int, bound: int) -> bool:
    return staleness(policy_version, dispatched_version) <= bound


def may_take(candidate: int, waiting: Sequence[int], *, version: int, bound: int, places: int, groups_per_burst: int) -> bool:
    """Whether a group dispatched under `candidate` may be trained now, so that every other waiting group still finds a place in time.

    Groups become ready in any order, so a burst that simply took the first would pass over a slow old group until it exceeds the bound.
    `waiting` holds the dispatch versions of all groups that are not yet trained, ready or not, the candidate among them; `version` is
    trained on now; `places` are left in this burst, and `groups_per_burst` in each later one. The oldest may always be taken: that
    never makes it worse for another.
    """
    if candidate == min(waiting):
        return True
    others = list(waiting)
    others.remove(candidate)
    for later in range(bound + 1):
        due = sum(not within(version + later + 1, v, bound) for v in others)
        if due > places - 1 + later * groups_per_burst:
            return False
    return True

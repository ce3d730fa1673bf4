"""Dispatch Refill: not only when a burst begins, but whenever groups are missing and the staleness bound lets new ones find a place."""

from __future__ import annotations

from tidemill.policy import burst
from tidemill.policy.burst import Plan


def groups_to_dispatch(plan: Plan, committed_steps: int, outstanding_groups: int, waiting_groups: int, places_left: int, bound: int) -> int:
    """As many as boundary dispatch would, but at most so many that each can be trained in time.

    A group that is dispatched now is within the bound in this burst and in `bound` later ones. `waiting_groups` are not yet taken by a
    step; each of them needs a place too, and all were dispatched before, so none has a later deadline than the new ones.
    """
    room = places_left + bound * plan.steps_per_burst * plan.groups_per_step - waiting_groups
    return max(0, min(burst.groups_to_dispatch(plan, committed_steps, outstanding_groups), room))

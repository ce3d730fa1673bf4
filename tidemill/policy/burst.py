"""Dispatch and the end of a burst, the same in every mode so that comparing them is fair."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """The job's constants: B groups a step, mu steps a burst, phi steps of prefetch, steps in all."""

    groups_per_step: int  # B
    steps_per_burst: int  # mu
    prefetch_steps: int  # phi
    steps: int


def groups_to_dispatch(plan: Plan, committed_steps: int, outstanding_groups: int) -> int:
    """How many groups to dispatch at the start of a burst: until (phi + mu) * B are outstanding, and no more than the job still trains."""
    left = (plan.steps - committed_steps) * plan.groups_per_step
    target = min((plan.prefetch_steps + plan.steps_per_burst) * plan.groups_per_step, left)
    return max(0, target - outstanding_groups)


def steps_in_burst(plan: Plan, steps_before: int) -> int:
    """Optimizer steps of the burst that starts after `steps_before`: mu, or what is left of the job."""
    return min(plan.steps_per_burst, plan.steps - steps_before)

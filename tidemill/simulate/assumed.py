"""Costs and tokens that nobody has measured yet: stated assumptions, so that a manifest alone can be simulated."""

from __future__ import annotations

from tidemill.simulate.costs import Costs
from tidemill.simulate.setup import Setup

TRAINING_SHARE = 0.3
"""Assumed training time of one execution, as a share of what it occupies of a cell in rollout (its mean time over C_e)."""

TOKENS_PER_EXECUTION = 1000.0
"""Any number would do: only its ratio to the training speed counts."""

FLIP_SECONDS = (8.52, 3.46)
"""Published for a 122B model: into training, and back."""

UPDATE_SHARE = 0.01
"""Assumed time of an optimizer update with its checkpoint, and of a publication, as a share of an execution's mean time."""


def assumed_costs(setup: Setup, mean_seconds: float) -> Costs:
    seconds = TRAINING_SHARE * mean_seconds / setup.capacity
    flip = min(1.0, mean_seconds / 600)  # of a job of short executions the flips are short too
    return Costs(
        train_tokens_per_second=TOKENS_PER_EXECUTION / seconds,
        optimizer_step_seconds=UPDATE_SHARE * mean_seconds,
        publish_seconds=UPDATE_SHARE * mean_seconds,
        flip_to_training_seconds=FLIP_SECONDS[0] * flip,
        flip_to_rollout_seconds=FLIP_SECONDS[1] * flip,
    )


def told() -> str:
    return (
        f"No costs were given: it is assumed that training an execution takes {TRAINING_SHARE:.0%} of the cell time that serving it takes, and an "
        f"update or a publication {UPDATE_SHARE:.0%} of an execution's time. Measure with --from DIR, or give --costs."
    )

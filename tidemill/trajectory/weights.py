"""From scores to the weight of every trained token, so that the loss of a step is a plain sum over tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

SMALLEST_DEVIATION = 1e-6
SMALLEST_RELATIVE = 1e-12
"""Scores that differ by less, or by less of the largest, differ by rounding."""

LARGE_EXPONENT = 256
"""Scores below 2 to this power can be squared and summed as they are."""


def advantages(scores: Sequence[float]) -> tuple[float, ...]:
    """Each score relative to its group: (score - mean) / standard deviation of the group's own scores.

    GRPO (arXiv 2402.03300), GSPO (2507.18071), DAPO (2503.14476) and CISPO (2506.13585) define it alike; they differ in the loss.
    The deviation divides by n: the scores are the whole group, not a sample of it. Equal scores say nothing: all advantages are 0.
    So do scores that are no finite numbers.
    """
    if not all(map(math.isfinite, scores)):
        return (0.0,) * len(scores)
    # Squares of large scores exceed what a float holds. A power of two changes no digit of them, and advantages have no unit.
    exponent = max(0, math.frexp(max(map(abs, scores)))[1] - LARGE_EXPONENT)
    scaled = [math.ldexp(score, -exponent) for score in scores]
    mean = math.fsum(scaled) / len(scaled)
    deviation = math.sqrt(math.fsum((s - mean) ** 2 for s in scaled) / len(scaled))
    if deviation < max(math.ldexp(SMALLEST_DEVIATION, -exponent), SMALLEST_RELATIVE * max(map(abs, scaled))):
        return (0.0,) * len(scores)
    return tuple((s - mean) / deviation for s in scaled)


def token_weight(advantage: float, trained_tokens: int, executions_per_step: int) -> float:
    """Token losses are averaged inside an execution, then over the B * N executions of a step, whatever was dropped."""
    return advantage / (trained_tokens * executions_per_step)

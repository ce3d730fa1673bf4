"""How a group's sequences are cut into micro-steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tidemill.trajectory.packing import common, worth_joining
from tidemill.trajectory.sequence import Sequence

MICRO_STEP_TOKENS = 1024
"""Tokens of one micro-step, context included. On a CPU (110 tokens/s) that is about ten seconds: short enough that cells finish a
step together and little is lost with one of them, long enough that leasing and handing over do not show."""


def cut(sequences: Iterable[Sequence], budget: int = MICRO_STEP_TOKENS) -> tuple[tuple[Sequence, ...], ...]:
    """Consecutive sequences up to `budget` tokens. One that is longer stands alone, or with those before it whose beginning it has."""
    parts: list[list[Sequence]] = []
    room = computed = longest = 0
    for sequence in sequences:
        length = len(sequence.token_ids)
        shared = max((_common(sequence, other) for other in parts[-1]), default=0) if parts else 0
        new = length - shared
        if not parts or (length > room and not worth_joining(shared, new, computed, max(longest, length))):
            parts.append([])
            room, computed, longest, new = budget, 0, 0, length
        parts[-1].append(sequence)
        room, computed, longest = room - length, computed + new, max(longest, length)
    return tuple(tuple(part) for part in parts)


def _common(one: Sequence, other: Sequence) -> int:
    return common(np.asarray(one.token_ids, np.int32), np.asarray(other.token_ids, np.int32))

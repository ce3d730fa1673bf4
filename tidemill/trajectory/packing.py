"""How a group's sequences are cut into micro-steps."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.trajectory.sequence import Sequence

MICRO_STEP_TOKENS = 1024
"""Tokens of one micro-step, context included. On a CPU (110 tokens/s) that is about ten seconds: short enough that cells finish a
step together and little is lost with one of them, long enough that leasing and handing over do not show."""


def cut(sequences: Iterable[Sequence], budget: int = MICRO_STEP_TOKENS) -> tuple[tuple[Sequence, ...], ...]:
    """Consecutive sequences up to `budget` tokens; one that is longer stands alone. Neighbours stay together, because they share prefixes."""
    parts: list[list[Sequence]] = []
    room = 0
    for sequence in sequences:
        if not parts or len(sequence.token_ids) > room:
            parts.append([])
            room = budget
        parts[-1].append(sequence)
        room -= len(sequence.token_ids)
    return tuple(tuple(part) for part in parts)

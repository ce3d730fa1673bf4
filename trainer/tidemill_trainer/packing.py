"""A micro-step cut into forward-backward passes. Pure; what one pass computes is `tidemill.trajectory.packing`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidemill.trajectory.columns import Ints
from tidemill.trajectory.packing import common, sorted_by_tokens, worth_joining


def passes(sequences: Sequence[Ints], tokens_per_pass: int) -> list[list[int]]:
    """Passes of at most `tokens_per_pass` computed tokens each, more if one sequence alone is longer: then those that begin like it may join.

    Sequences that begin alike stay together as far as possible.
    """
    cut: list[list[int]] = []
    computed = longest = 0
    before = np.zeros(0, np.int32)
    for index in sorted_by_tokens(sequences):
        tokens = np.asarray(sequences[index], np.int32)
        shared = common(before, tokens)
        new = len(tokens) - shared
        fits = computed + new <= tokens_per_pass
        if longest > tokens_per_pass:
            fits = worth_joining(shared, new, computed, max(longest, len(tokens)))
        if not cut or not fits:
            cut.append([])
            computed, longest, new = 0, 0, len(tokens)
        cut[-1].append(index)
        computed, longest, before = computed + new, max(longest, len(tokens)), tokens
    return cut

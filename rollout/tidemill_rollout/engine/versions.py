"""Which policy version computed each token of an answer. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """Tokens in a row of one version."""

    version: int
    start: int  # index of its first token in the answer


def versions_of(runs: Sequence[Run], first: int, count: int) -> tuple[int, ...]:
    """The version of each of the `count` tokens from `first` on; `runs` ascend and begin at 0.

    Exact, whenever the outputs arrive: the engine core tags the output of every step with the version it computed with, and changes the version only
    while no step runs.
    """
    starts = [run.start for run in runs]
    return tuple(runs[bisect_right(starts, index) - 1].version for index in range(first, first + count))

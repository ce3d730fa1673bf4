"""Sequences that begin alike, packed as a tree: a shared prefix stands, and is computed, once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from tidemill.trajectory.columns import INT, Ints, column

SHORTEST_SHARED_RUN = 16
"""Shorter common runs are computed once for each sequence: a segment of its own would cost more than it saves."""

SHARING = 1.5
"""What is computed together because it begins alike takes at most so many times what its longest sequence takes alone: memory and waiting."""

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that sees itself causally and all of its ancestors, and is seen by its subtree, `start` to `until`."""

    start: int  # in the packed row
    length: int
    ancestors: tuple[int, ...]  # indices of segments, the root first
    begin: int  # in each of its sequences: the depth of its first token
    until: int  # where in the row its last descendant ends


@dataclass(frozen=True, slots=True)
class Packed:
    """One row without padding, in depth-first order. `places[i]` says where each token of sequence i lies in it."""

    token_ids: Ints
    positions: Ints  # depth in the tree: the position each token has in its sequence
    segments: tuple[Segment, ...]  # in the order of the row
    places: tuple[Ints, ...]


def pack(sequences: Sequence[Ints], shortest_shared_run: int = SHORTEST_SHARED_RUN) -> Packed:
    """The prefix tree of `sequences`.

    A forward pass in which each segment attends to itself and its ancestors gives every token the hidden state it has in its own sequence.
    """
    tokens = [np.asarray(sequence, np.int32) for sequence in sequences]
    order = [i for i in sorted_by_tokens(sequences) if len(tokens[i])]
    runs = list(_runs([len(tokens[i]) for i in order], [common(tokens[a], tokens[b]) for a, b in pairwise(order)], shortest_shared_run))
    starts = [0, *accumulate(run.end - run.begin for run in runs)]
    segments: list[Segment] = []
    places: list[list[Tokens]] = [[] for _ in sequences]
    for number, run in enumerate(runs):
        ancestors = () if run.parent is None else (*segments[run.parent].ancestors, run.parent)
        start, until = starts[number : number + 2]
        segments.append(Segment(start, until - start, ancestors, run.begin, until))
        for ancestor in ancestors:
            segments[ancestor] = replace(segments[ancestor], until=until)
        for member in order[run.low : run.high]:
            places[member].append(np.arange(start, until, dtype=np.int32))
    return Packed(
        _joined([tokens[order[run.low]][run.begin : run.end] for run in runs]),
        _joined([np.arange(run.begin, run.end, dtype=np.int32) for run in runs]),
        tuple(segments),
        tuple(_joined(of_one) for of_one in places),
    )


def sorted_by_tokens(sequences: Sequence[Ints]) -> list[int]:
    """Indices of the sequences as a dictionary orders them: those that begin alike are neighbours, the shorter first."""
    keys = [np.asarray(sequence, ">i4").tobytes() for sequence in sequences]  # token ids are not negative
    return sorted(range(len(keys)), key=keys.__getitem__)


def worth_joining(shared: int, new: int, computed: int, longest: int) -> bool:
    """Whether a sequence of `shared` + `new` tokens is better computed with the others that share them, although that is a lot already."""
    return shared >= new and computed + new <= SHARING * longest


def common(one: Tokens, other: Tokens) -> int:
    """How many tokens they begin with alike."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


@dataclass(frozen=True, slots=True)
class _Run:
    low: int  # the sorted sequences low to high hold this run
    high: int
    begin: int  # where it lies in each of them
    end: int
    parent: int | None  # index of the run before it


def _runs(lengths: list[int], shared: list[int], shortest: int) -> Iterator[_Run]:
    """Depth first. `shared`: what each sorted sequence has in common with the next."""
    pending: list[tuple[int, int, int, int | None]] = [(0, len(lengths), 0, None)] if lengths else []
    count = 0
    while pending:
        low, high, begin, parent = pending.pop()
        end = min(shared[low : high - 1], default=lengths[low])
        if high - low == 1 or end - begin >= shortest:
            yield _Run(low, high, begin, end, parent)
            begin, parent, count = end, count, count + 1
        edges = [low, *(place + 1 for place in range(low, high - 1) if shared[place] == end), high]
        children = [edge for edge in pairwise(edges) if lengths[edge[0]] > end]
        if begin < end:  # too short a run to share: whoever ends in it goes alone, the others keep it as their own beginning
            children += [edge for edge in pairwise(edges) if lengths[edge[0]] == end]
        pending += [(*child, begin, parent) for child in reversed(children)]


def _joined(parts: Sequence[Tokens]) -> Ints:
    if not parts:
        return column(INT, ())
    whole = np.concatenate(parts)
    whole.flags.writeable = False  # so it is a column as it stands
    return column(INT, memoryview(whole))

"""Sequences that begin alike, packed as a tree: a shared prefix is computed once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

SHORTEST_SHARED_RUN = 16
"""Shorter common runs are computed once for each sequence: a segment of its own would cost more than it saves."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that sees itself causally and all of its ancestors."""

    start: int  # in the packed row
    length: int
    ancestors: tuple[int, ...]  # indices of segments, the root first


@dataclass(frozen=True, slots=True)
class Packed:
    """One row without padding. `places[i]` says where each token of sequence i lies in it."""

    token_ids: tuple[int, ...]
    positions: tuple[int, ...]  # depth in the tree: the position each token has in its sequence
    segments: tuple[Segment, ...]  # in the order of the row
    places: tuple[tuple[int, ...], ...]


def pack(sequences: Sequence[Tokens], shortest_shared_run: int = SHORTEST_SHARED_RUN) -> Packed:
    """The prefix tree of `sequences` in depth-first order.

    A forward pass in which each segment attends to itself and its ancestors gives every token the hidden state it has in its own sequence.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    places: list[tuple[int, ...]] = [()] * len(sequences)
    for run in _tree(sequences, shortest_shared_run):
        ancestors = () if run.parent is None else (*segments[run.parent].ancestors, run.parent)
        start = len(token_ids)
        segments.append(Segment(start, run.end - run.begin, ancestors))
        token_ids += sequences[run.members[0]][run.begin : run.end]
        positions += range(run.begin, run.end)
        for member in run.members:
            places[member] += tuple(range(start, len(token_ids)))
    return Packed(tuple(token_ids), tuple(positions), tuple(segments), tuple(places))


def passes(sequences: Sequence[Tokens], tokens_per_pass: int) -> list[list[int]]:
    """Cut a micro-step into forward-backward passes of at most `tokens_per_pass` computed tokens each (more if one sequence alone is longer).

    Sequences that begin alike stay together as far as possible.
    """
    cut: list[list[int]] = []
    room = 0
    before: Tokens = ()
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        tokens = sequences[index]
        new = len(tokens) - _common(before, tokens, 0)
        if not cut or new > room:
            cut.append([])
            room, new = tokens_per_pass, len(tokens)
        cut[-1].append(index)
        room -= new
        before = tokens
    return cut


@dataclass(frozen=True, slots=True)
class _Run:
    members: list[int]  # sequences that hold this run
    begin: int  # where it lies in each of them
    end: int
    parent: int | None  # index of the run before it


def _tree(sequences: Sequence[Tokens], shortest: int) -> Iterator[_Run]:
    order = sorted((i for i in range(len(sequences)) if sequences[i]), key=sequences.__getitem__)
    pending: list[tuple[list[int], int, int | None]] = [(order, 0, None)] if order else []
    count = 0
    while pending:
        members, begin, parent = pending.pop()
        first = sequences[members[0]]
        end = _common(first, sequences[members[-1]], begin)  # sorted: what the first and last share, all share
        if len(members) == 1 or end - begin >= shortest:
            yield _Run(members, begin, end, parent)
            begin, parent, count = end, count, count + 1
        children = [list(same) for _, same in groupby((m for m in members if len(sequences[m]) > end), key=lambda m: sequences[m][end])]
        if begin < end:  # too short a run to share: whoever ends in it goes alone, the others keep it as their own beginning
            children += [[m] for m in members if len(sequences[m]) == end]
        pending += [(child, begin, parent) for child in reversed(children)]


def _common(a: Tokens, b: Tokens, begin: int) -> int:
    shorter = min(len(a), len(b))
    if a[begin:shorter] == b[begin:shorter]:
        return shorter
    return next(i for i in range(begin, shorter) if a[i] != b[i])

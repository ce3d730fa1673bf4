"""The trajectory tree: the turns of one execution, each below the one it continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.trajectory.records import Turn


class BrokenTree(Exception):
    """The turns do not form a tree: one is missing, stands twice, or continues itself."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Turns by id, in the order in which they were recorded. A turn is two runs of tokens: given (its context), then sampled."""

    turns: dict[str, Turn]
    leaves: tuple[Turn, ...]

    def path(self, leaf: Turn) -> tuple[Turn, ...]:
        """The turns from the root to `leaf`."""
        reverse = [leaf]
        while reverse[-1].parent:
            reverse.append(self.turns[reverse[-1].parent])
        return tuple(reversed(reverse))


def grow(turns: Sequence[Turn]) -> Tree:
    """Raises `BrokenTree` and names the turn that does not fit."""
    by_id: dict[str, Turn] = {}
    for turn in turns:
        if turn.id in by_id:
            raise BrokenTree(f"execution {turn.execution}: turn {turn.id} is recorded twice")
        by_id[turn.id] = turn
    for turn in turns:
        if turn.parent and turn.parent not in by_id:
            raise BrokenTree(f"execution {turn.execution}: turn {turn.id} continues turn {turn.parent}, which is not recorded")
        if any(not len(p.token_ids) == len(p.logprobs) == len(p.versions) for p in turn.pieces):
            raise BrokenTree(f"execution {turn.execution}: turn {turn.id} has a piece whose tokens, log-probabilities and versions differ in number")
    _refuse_cycles(by_id)
    parents = {turn.parent for turn in turns}
    return Tree(by_id, tuple(t for t in turns if t.id not in parents))


def _refuse_cycles(by_id: dict[str, Turn]) -> None:
    rooted: set[str] = set()
    for turn in by_id.values():
        walked: list[str] = []
        at = turn.id
        while at and at not in rooted:
            if at in walked:
                raise BrokenTree(f"execution {turn.execution}: turn {turn.id} continues itself")
            walked.append(at)
            at = by_id[at].parent
        rooted.update(walked)

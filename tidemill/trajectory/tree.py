"""The trajectory tree: the turns of one execution, each below the one it continues. Nodes never change; the rest is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.trajectory.records import Turn


class BrokenTree(Exception):
    """The turns do not form a tree: one is missing, stands twice, or continues itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One turn: a run of given tokens, then the sampled ones."""

    turn: Turn
    parent: Node | None
    before: int  # tokens from the root to the first of its own

    @property
    def end(self) -> int:
        """Tokens from the root to its last."""
        return self.before + len(self.turn.context_ids) + self.turn.sampled

    @property
    def path(self) -> tuple[Node, ...]:
        """From the root to here."""
        reverse = [self]
        while reverse[-1].parent is not None:
            reverse.append(reverse[-1].parent)
        return tuple(reversed(reverse))


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """`nodes` by turn id, in the order in which the turns were recorded."""

    nodes: dict[str, Node]
    downward: tuple[Node, ...]  # every node after its parent
    leaves: tuple[Node, ...]

    @property
    def tokens(self) -> int:
        return sum(len(node.turn.context_ids) + node.turn.sampled for node in self.downward)


def grow(turns: Sequence[Turn]) -> Tree:
    """Raises `BrokenTree` and names the turn that does not fit."""
    children = _children(turns)
    grown: dict[str, Node] = {}
    downward: list[Node] = []
    pending = children.get("", [])
    while pending:
        following: list[Turn] = []
        for turn in pending:
            parent = grown.get(turn.parent)
            node = grown[turn.id] = Node(turn, parent, parent.end if parent else 0)
            downward.append(node)
            following += children.get(turn.id, ())
        pending = following
    for turn in turns:
        if turn.id not in grown:
            raise BrokenTree(f"execution {turn.execution}: turn {turn.id} continues itself")
    nodes = {turn.id: grown[turn.id] for turn in turns}
    return Tree(nodes, tuple(downward), tuple(node for name, node in nodes.items() if name not in children))


def _children(turns: Sequence[Turn]) -> dict[str, list[Turn]]:
    """By the parent's id, "" for roots."""
    known = {turn.id for turn in turns}
    children: dict[str, list[Turn]] = {}
    seen: set[str] = set()
    for turn in turns:
        if turn.id in seen:
            raise BrokenTree(f"execution {turn.execution}: turn {turn.id} is recorded twice")
        seen.add(turn.id)
        if turn.parent and turn.parent not in known:
            raise BrokenTree(f"execution {turn.execution}: turn {turn.id} continues turn {turn.parent}, which is not recorded")
        if any(not len(p.token_ids) == len(p.logprobs) == len(p.versions) for p in turn.pieces):
            raise BrokenTree(f"execution {turn.execution}: turn {turn.id} has a piece whose tokens, log-probabilities and versions differ in number")
        children.setdefault(turn.parent, []).append(turn)
    return children

"""The J_max sampler: which root-to-leaf paths of a tree are trained, and which tokens of each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tidemill.trajectory.classes import leaf_class
from tidemill.trajectory.records import Turn
from tidemill.trajectory.tree import Node, Tree


@dataclass(frozen=True, slots=True)
class Path:
    """Turns from the root to a leaf; only the sampled tokens of `trained` are trained, the others were trained with an earlier path."""

    turns: tuple[Turn, ...]
    trained: frozenset[str]

    @property
    def trained_tokens(self) -> int:
        return sum(turn.sampled for turn in self.turns if turn.id in self.trained)


def draw_paths(tree: Tree, most: int, random: Random) -> tuple[Path, ...]:
    """At most `most` paths. Every trainable token is in `trained` of at most one of them, so a shared prefix is trained once.

    Each draw takes, in the first class that has any left, a leaf with probability proportional to the trainable tokens
    of its path that no earlier draw has taken.
    """
    sampled = {node: node.turn.sampled for node in tree.downward}
    taken: set[Node] = set()
    drawn: list[Path] = []
    while len(drawn) < most:
        left = _left(tree, sampled, taken)
        open_leaves = [leaf for leaf in tree.leaves if left[leaf]]
        if not open_leaves:
            break
        first = min(leaf_class(leaf.turn) for leaf in open_leaves)
        candidates = [leaf for leaf in open_leaves if leaf_class(leaf.turn) == first]
        (chosen,) = random.choices(candidates, weights=[left[leaf] for leaf in candidates])
        new = [node for node in chosen.path if node not in taken and sampled[node]]
        drawn.append(Path(tuple(node.turn for node in chosen.path), frozenset(node.turn.id for node in new)))
        taken.update(new)
    return tuple(drawn)


def _left(tree: Tree, sampled: dict[Node, int], taken: set[Node]) -> dict[Node, int]:
    """Trainable tokens from the root to each node that nobody has taken: one pass, however many leaves share a trunk."""
    left: dict[Node, int] = {}
    for node in tree.downward:
        left[node] = (left[node.parent] if node.parent else 0) + (0 if node in taken else sampled[node])
    return left

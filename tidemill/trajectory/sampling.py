"""The J_max sampler: which root-to-leaf paths of a tree are trained, and which tokens of each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tidemill.trajectory.classes import leaf_class
from tidemill.trajectory.records import Turn
from tidemill.trajectory.tree import Tree


@dataclass(frozen=True, slots=True)
class Path:
    """Turns from the root to a leaf; only the sampled tokens of `trained` are trained, the others were trained with an earlier path."""

    turns: tuple[Turn, ...]
    trained: frozenset[str]

    @property
    def trained_tokens(self) -> int:
        return sum(len(t.sampled_ids) for t in self.turns if t.id in self.trained)


def draw_paths(tree: Tree, most: int, random: Random) -> tuple[Path, ...]:
    """At most `most` paths. Every trainable token is in `trained` of at most one of them, so a shared prefix is trained once.

    Each draw takes, in the first class that has any left, a leaf with probability proportional to the trainable tokens
    of its path that no earlier draw has taken.
    """
    paths = {leaf.id: tree.path(leaf) for leaf in tree.leaves}
    taken: set[str] = set()
    drawn: list[Path] = []
    while len(drawn) < most:
        left = {leaf.id: sum(len(t.sampled_ids) for t in paths[leaf.id] if t.id not in taken) for leaf in tree.leaves}
        open_leaves = [leaf for leaf in tree.leaves if left[leaf.id]]
        if not open_leaves:
            break
        first = min(leaf_class(leaf) for leaf in open_leaves)
        candidates = [leaf.id for leaf in open_leaves if leaf_class(leaf) == first]
        (chosen,) = random.choices(candidates, weights=[left[c] for c in candidates])
        turns = paths[chosen]
        trained = frozenset(t.id for t in turns if t.id not in taken and t.sampled_ids)
        drawn.append(Path(turns, trained))
        taken |= trained
    return tuple(drawn)

"""A trajectory as people see it: strands, each the turns of one branch from where it begins to its leaf, with what they hold. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tidemill.trajectory.branches import Origin, origins
from tidemill.trajectory.records import Trajectory
from tidemill.trajectory.sampling import draw_paths
from tidemill.trajectory.tree import Node, Tree, grow


@dataclass(frozen=True, slots=True)
class Rule:
    """How the job draws paths."""

    most_paths: int
    seed: int


@dataclass(slots=True)
class Strand:
    number: int
    origin: Origin
    agent: str
    parent_agent: str
    start: int  # tokens before its first
    parent: int | None  # number of the strand it forks from
    nodes: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        who = f"sub-agent {self.agent}" if self.agent else "main"
        if self.parent_agent:
            who += f" of {self.parent_agent}"
        return who if self.origin in (Origin.START, Origin.SUB_AGENT) else f"{who}: {self.origin.value}"

    @property
    def given(self) -> int:
        return sum(len(node.turn.context_ids) for node in self.nodes)

    @property
    def sampled(self) -> int:
        return sum(node.turn.sampled for node in self.nodes)

    @property
    def given_by(self) -> Counter[str]:
        """Messages by role."""
        return Counter(role for node in self.nodes for role in node.turn.given_by)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted({version for node in self.nodes for piece in node.turn.pieces for version in piece.versions}))

    @property
    def cells(self) -> Counter[str]:
        """Sampled tokens by cell."""
        counted: Counter[str] = Counter()
        for piece in (piece for node in self.nodes for piece in node.turn.pieces):
            counted[piece.cell] += len(piece.token_ids)
        return counted

    @property
    def moved(self) -> int:
        """Answers that were sampled on more than one cell."""
        return sum(len(node.turn.pieces) > 1 for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Picture:
    trajectory: Trajectory
    tree: Tree
    strands: tuple[Strand, ...]  # each behind the one it forks from
    drawn: frozenset[str] | None  # turns whose tokens the sampler chose; None: by which rule nobody knows

    @property
    def paths_drawn(self) -> int:
        return sum(self.drawn is not None and leaf.turn.id in self.drawn for leaf in self.tree.leaves)

    def drawn_tokens(self, nodes: Sequence[Node]) -> int:
        return sum(node.turn.sampled for node in nodes if self.drawn is not None and node.turn.id in self.drawn)


def picture(trajectory: Trajectory, rule: Rule | None) -> Picture:
    """Raises `BrokenTree`."""
    tree = grow(trajectory.turns)
    drawn = None if rule is None else frozenset(_drawn(trajectory, tree, rule))
    return Picture(trajectory, tree, _strands(tree), drawn)


def _drawn(trajectory: Trajectory, tree: Tree, rule: Rule) -> set[str]:
    """As the conductor draws, who has the same seed for an execution whenever it does."""
    if trajectory.score is None or (trajectory.judged is not None and not trajectory.judged.valid):
        return set()
    paths = draw_paths(tree, rule.most_paths, Random(f"{rule.seed}/{trajectory.execution}"))
    return {name for path in paths for name in path.trained}


def _strands(tree: Tree) -> tuple[Strand, ...]:
    why = origins(tree)
    made: list[Strand] = []
    of: dict[str, Strand] = {}  # by turn id
    for node in tree.downward:
        name, before = node.turn.id, of.get(node.turn.parent)
        if before is not None and why[name] is Origin.GOES_ON and before.nodes[-1] is node.parent:
            before.nodes.append(node)
            of[name] = before
            continue
        turn = node.turn
        strand = Strand(len(made), why[name], turn.agent, turn.parent_agent, node.before, None if before is None else before.number, [node])
        made.append(strand)
        of[name] = strand
    return _in_order(made)


def _in_order(made: list[Strand]) -> tuple[Strand, ...]:
    """Depth first, forks by their place; numbered anew."""
    below: dict[int | None, list[Strand]] = {}
    for strand in made:
        below.setdefault(strand.parent, []).append(strand)
    ordered: list[Strand] = []
    pending = list(reversed(below.get(None, [])))
    while pending:
        strand = pending.pop()
        ordered.append(strand)
        pending += sorted(below.get(strand.number, ()), key=lambda fork: (fork.start, fork.number), reverse=True)
    numbers = {strand.number: number for number, strand in enumerate(ordered)}
    for strand in ordered:
        strand.number, strand.parent = numbers[strand.number], None if strand.parent is None else numbers[strand.parent]
    return tuple(ordered)

"""From one execution's turns to what the trainer computes: the chosen paths as sequences."""

from __future__ import annotations

from collections.abc import Sequence as Many
from random import Random

from tidemill.trajectory.columns import FLAG, FLOAT, INT, Flags, Ints, filled, joined
from tidemill.trajectory.records import Turn
from tidemill.trajectory.sampling import Path, draw_paths
from tidemill.trajectory.sequence import Sequence
from tidemill.trajectory.tree import grow
from tidemill.trajectory.weights import token_weight


def sequences_of(turns: Many[Turn], advantage: float, executions_per_step: int, most_paths: int, random: Random) -> tuple[Sequence, ...]:
    """At most `most_paths` sequences, whose weights sum to advantage / executions_per_step; none when nothing was sampled.

    Raises:
        BrokenTree: the turns do not fit together.
    """
    paths = draw_paths(grow(turns), most_paths, random)
    tokens = sum(path.trained_tokens for path in paths)
    return tuple(_sequence(path, token_weight(advantage, tokens, executions_per_step)) for path in paths)


def _sequence(path: Path, weight: float) -> Sequence:
    """The given tokens of a turn, then the sampled ones. What an earlier path trained is context here."""
    token_ids: list[Ints] = []
    trained: list[Flags] = []
    for turn in path.turns:
        token_ids += [turn.context_ids, turn.sampled_ids]
        trained += [filled(FLAG, False, len(turn.context_ids)), filled(FLAG, turn.id in path.trained, turn.sampled)]
    sampled = [turn for turn in path.turns if turn.id in path.trained]
    return Sequence(
        execution=path.turns[-1].execution,
        token_ids=joined(INT, token_ids),
        trained=joined(FLAG, trained),
        behaviour_logprobs=joined(FLOAT, (turn.logprobs for turn in sampled)),
        versions=joined(INT, (turn.versions for turn in sampled)),
        weights=filled(FLOAT, weight, path.trained_tokens),
    )

"""From one execution's turns to what the trainer computes: the chosen paths as sequences."""

from __future__ import annotations

from collections.abc import Sequence as Many
from random import Random

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
    token_ids: list[int] = []
    trained: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for turn in path.turns:
        sampled = turn.sampled_ids
        is_trained = turn.id in path.trained
        given = len(turn.context_ids)
        token_ids += turn.context_ids + sampled
        trained += [False] * given + [is_trained] * len(sampled)
        logprobs += [0.0] * given + (list(turn.logprobs) if is_trained else [0.0] * len(sampled))
        versions += [0] * given + (list(turn.versions) if is_trained else [0] * len(sampled))
    return Sequence(
        execution=path.turns[-1].execution,
        token_ids=tuple(token_ids),
        trained=tuple(trained),
        behaviour_logprobs=tuple(logprobs),
        versions=tuple(versions),
        weights=tuple(weight if t else 0.0 for t in trained),
    )

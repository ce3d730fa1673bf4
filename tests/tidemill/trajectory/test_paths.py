import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidemill.trajectory.forests import forests
from tidemill.trajectory.packing import pack
from tidemill.trajectory.paths import sequences_of
from tidemill.trajectory.records import Piece, Turn
from tidemill.trajectory.sequence import Sequence
from tidemill.trajectory.weights import advantages


def turn(name: str, parent: str, context: tuple[int, ...], *pieces: Piece) -> Turn:
    return Turn(name, "g1-0", 1, parent, "", context, pieces, "stop", 0.0, 1.0, "chat")


FIRST = turn("a", "", (1, 2), Piece("cell-0", (10,), (-0.5,), (0,)), Piece("cell-1", (11,), (-0.25,), (1,)))
"""An answer that moved between two engines, and between two policy versions."""


def test_a_path_becomes_one_sequence_with_given_tokens_as_context_only() -> None:
    (sequence,) = sequences_of([FIRST, turn("b", "a", (3,), Piece("cell-1", (12,), (-0.75,), (1,)))], 1.5, 4, 5, Random(1))
    assert list(sequence.token_ids) == [1, 2, 10, 11, 3, 12]
    assert list(sequence.trained) == [False, False, True, True, False, True]
    assert list(sequence.behaviour_logprobs) == [-0.5, -0.25, -0.75]
    assert list(sequence.versions) == [0, 1, 1]
    assert list(sequence.weights) == [0.125, 0.125, 0.125]


def test_tokens_that_an_earlier_path_trained_are_context_of_the_next() -> None:
    branches = [turn(name, "a", (3,), Piece("cell-1", (12, 13), (-0.3, -0.4), (1, 1))) for name in ("b", "c")]
    first, second = sequences_of([FIRST, *branches], 1.0, 4, 5, Random(1))
    assert list(first.trained) == [False, False, True, True, False, True, True]
    assert list(second.trained) == [False, False, False, False, False, True, True]
    assert len(second.behaviour_logprobs) == second.trained_tokens == 2
    assert sum(first.weights) + sum(second.weights) == pytest.approx(0.25)


def test_a_sequence_whose_columns_do_not_fit_together_is_none() -> None:
    for facts in ((), (-0.5,), (-0.5,) * 3):
        with pytest.raises(ValueError, match="execution g1-0: the columns of a sequence do not fit together"):
            Sequence("g1-0", (1, 2, 3), (False, True, True), facts, (0, 0), (0.1, 0.1))


@given(forests(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_however_calls_interleave_every_sampled_token_is_trained_once_with_its_own_facts(turns: list[Turn], executions: int, random: Random) -> None:
    """Tokens have numbers of their own, and log-probabilities and versions that tell the number."""
    sequences = sequences_of(turns, 1.5, executions, len(turns) + 1, random)
    trained = [[token for token, is_trained in zip(s.token_ids, s.trained, strict=True) if is_trained] for s in sequences]
    assert sorted(token for tokens in trained for token in tokens) == sorted(token for turn in turns for token in turn.sampled_ids)
    for sequence, tokens in zip(sequences, trained, strict=True):
        assert list(sequence.behaviour_logprobs) == [-token / 1024 for token in tokens]
        assert list(sequence.versions) == [token % 7 for token in tokens]
    assert sum(sum(s.weights) for s in sequences) == pytest.approx(1.5 / executions if any(trained) else 0.0)


@given(forests(), st.randoms(use_true_random=False))
def test_chosen_paths_packed_as_a_tree_are_the_separate_sequences_and_hold_every_token_once(turns: list[Turn], random: Random) -> None:
    sequences = [s.token_ids for s in sequences_of(turns, 1.0, 1, len(turns) + 1, random)]
    packed = pack(sequences, shortest_shared_run=1)
    assert [[packed.token_ids[p] for p in places] for places in packed.places] == [list(s) for s in sequences]
    assert len(set(packed.token_ids)) == len(packed.token_ids)


def test_advantages_are_scores_relative_to_their_group() -> None:
    assert advantages([0.0, 1.0]) == (-1.0, 1.0)
    assert advantages([0.0, 0.0, 0.0, 1.0]) == pytest.approx((-(3**-0.5),) * 3 + (3**0.5,))
    assert advantages([0.3, 0.3, 0.1 + 0.2]) == (0.0, 0.0, 0.0)


def test_scores_of_any_size_have_advantages_as_small_ones_have() -> None:
    for score in (1.0, 1e160, 1e200, 1.7e308):
        assert advantages([-score, score]) == (-1.0, 1.0)
        assert advantages([0.0, 0.0, 0.0, score]) == pytest.approx(advantages([0.0, 0.0, 0.0, 1.0]))
        assert advantages([score] * 3) == (0.0,) * 3
    for nothing in (math.inf, -math.inf, math.nan):
        assert advantages([0.0, nothing]) == (0.0, 0.0)


@given(st.lists(st.floats(), min_size=1, max_size=8))
def test_advantages_are_finite_whatever_was_scored(scores: list[float]) -> None:
    assert all(map(math.isfinite, advantages(scores)))


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=16))
def test_advantages_sum_to_nothing_and_keep_the_order_of_the_scores(scores: list[float]) -> None:
    values = advantages(scores)
    assert sum(values) == pytest.approx(0.0, abs=1e-3)
    assert all(values[a] <= values[b] for a in range(len(scores)) for b in range(len(scores)) if scores[a] < scores[b])

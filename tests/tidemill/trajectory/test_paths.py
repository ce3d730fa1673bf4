import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.trajectory.packing import cut
from tidemill.trajectory.paths import sequences_of
from tidemill.trajectory.records import Piece, Turn
from tidemill.trajectory.sequence import Sequence
from tidemill.trajectory.weights import advantages


def turn(name: str, parent: str, context: tuple[int, ...], *pieces: Piece) -> Turn:
    return Turn(name, "g1-0", 1, parent, "", context, pieces, "stop", 0.0, 1.0, "chat")


FIRST = turn("a", "", (1, 2), Piece("cell-0", (10,), (-0.1,), (0,)), Piece("cell-1", (11,), (-0.2,), (1,)))
"""An answer that moved between two engines, and between two policy versions."""


def test_a_path_becomes_one_sequence_with_given_tokens_as_context_only() -> None:
    (sequence,) = sequences_of([FIRST, turn("b", "a", (3,), Piece("cell-1", (12,), (-0.3,), (1,)))], 1.5, 4, 5, Random(1))
    assert sequence.token_ids == (1, 2, 10, 11, 3, 12)
    assert sequence.trained == (False, False, True, True, False, True)
    assert sequence.behaviour_logprobs == (0.0, 0.0, -0.1, -0.2, 0.0, -0.3)
    assert sequence.versions == (0, 0, 0, 1, 0, 1)
    assert sequence.weights == pytest.approx((0, 0, 0.125, 0.125, 0, 0.125))


def test_tokens_that_an_earlier_path_trained_are_context_of_the_next() -> None:
    branches = [turn(name, "a", (3,), Piece("cell-1", (12, 13), (-0.3, -0.4), (1, 1))) for name in ("b", "c")]
    first, second = sequences_of([FIRST, *branches], 1.0, 4, 5, Random(1))
    assert first.trained == (False, False, True, True, False, True, True)
    assert second.trained == (False, False, False, False, False, True, True)
    assert second.behaviour_logprobs[:5] == (0.0,) * 5
    assert sum(first.weights) + sum(second.weights) == pytest.approx(0.25)


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


def sequence(tokens: int) -> Sequence:
    return Sequence("g1-0", (7,) * tokens, (True,) * tokens, (0.0,) * tokens, (0,) * tokens, (0.1,) * tokens)


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 60))
def test_micro_steps_hold_every_sequence_once_in_order_and_stay_in_their_budget(lengths: list[int], budget: int) -> None:
    parts = cut([sequence(n) for n in lengths], budget)
    assert [len(s.token_ids) for part in parts for s in part] == lengths
    assert all(len(part) == 1 or sum(len(s.token_ids) for s in part) <= budget for part in parts)

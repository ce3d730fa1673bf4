from array import array
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.trajectory.columns import FLAG, FLOAT, INT, column, filled, joined
from tidemill.trajectory.records import Piece

numbers = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20)


@given(numbers)
def test_whatever_holds_numbers_becomes_the_same_read_only_column(values: list[int]) -> None:
    ways: list[Iterable[int]] = [values, tuple(values), array("i", values), iter(values), memoryview(array("i", values)), column(INT, values)]
    for way in ways:
        made = column(INT, way)
        assert (list(made), made.nbytes, made.readonly) == (values, 4 * len(values), True)


@given(numbers, st.integers(1, 3))
def test_a_part_of_a_column_is_a_column_that_can_be_written_and_read(values: list[int], step: int) -> None:
    part = column(INT, values)[1::step]
    piece = Piece("cell-0", part, (0.0,) * len(part), part)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(piece), type=Piece) == piece
    assert list(piece.token_ids) == values[1::step]


@given(st.lists(numbers, max_size=4))
def test_columns_are_joined_in_their_order(parts: list[list[int]]) -> None:
    assert list(joined(INT, parts)) == [number for part in parts for number in part]


def test_a_single_column_is_not_copied() -> None:
    one = column(INT, (1, 2))
    assert joined(INT, (one,)) is one


def test_a_column_may_be_one_value() -> None:
    assert list(filled(FLOAT, -0.25, 3)) == [-0.25] * 3
    assert list(filled(FLAG, True, 2)) == [True, True]
    assert list(filled(INT, 7, 0)) == []


def test_log_probabilities_keep_what_an_engine_computes_in() -> None:
    """Of a float32 nothing is lost."""
    (value,) = array("f", [-0.1])
    assert list(column(FLOAT, [value])) == [value] != [-0.1]


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(ValueError, match="32 bits"):
        column(INT, (2**31,))
    with pytest.raises(TypeError):
        column(INT, ("a",))

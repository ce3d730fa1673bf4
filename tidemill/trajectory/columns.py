"""Columns: numbers that cost what they hold, 4 bytes a token where a tuple's take 36. Read like tuples, made from any iterable.

A column is a read-only memoryview. On disk and between processes it is its bytes (little-endian); the lists of format 1 are read as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    Ints = Sequence[int]
    Floats = Sequence[float]
    Flags = Sequence[bool]
else:  # what msgspec reads; `settle` makes a column of either
    Ints = memoryview | tuple[int, ...]
    Floats = memoryview | tuple[float, ...]
    Flags = memoryview | tuple[bool, ...]

Kind = Literal["i", "f", "?"]
INT: Kind = "i"
FLOAT: Kind = "f"  # engines compute log-probabilities in float32, trainers weigh in it
FLAG: Kind = "?"


def column(kind: Kind, values: Iterable[Any]) -> memoryview[Any]:
    """Raises `ValueError` for a number that does not fit, `TypeError` for bytes that are none of this kind."""
    if isinstance(values, memoryview):
        if values.readonly and values.contiguous and values.format == kind:
            return values
        raw = bytes(values)  # a copy: a message that was read would stay in memory with its smallest part
    else:
        try:
            raw = array("b" if kind == FLAG else kind, values).tobytes()
        except OverflowError as cause:
            raise ValueError(f"a number does not fit into 32 bits: {cause}") from cause
    return memoryview(raw).cast(kind)


def filled(kind: Kind, value: float, count: int) -> memoryview[Any]:
    """`value`, `count` times."""
    return memoryview(bytes(column(kind, [value])) * count).cast(kind)


def joined(kind: Kind, parts: Iterable[Iterable[Any]]) -> memoryview[Any]:
    """One column behind the other. A single one is not copied."""
    columns = [column(kind, part) for part in parts]
    return columns[0] if len(columns) == 1 else memoryview(b"".join(columns)).cast(kind)


def settle(record: msgspec.Struct, **kinds: Kind) -> None:
    """For `__post_init__`: make columns of the fields named."""
    for name, kind in kinds.items():
        msgspec.structs.force_setattr(record, name, column(kind, getattr(record, name)))

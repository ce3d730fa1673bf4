"""Who a cell is, for as long as its agent runs."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.wire.cell import CellKind


@dataclass(frozen=True, slots=True)
class Identity:
    cell: str
    kind: CellKind
    ordinal: int
    url: str  # of the agent
    capacity: int  # C_e
    trainer_url: str = ""  # under which other cells reach its trainer; empty: as the agent does
    job: str = ""  # its name


def parse_name(cell: str) -> tuple[CellKind, int]:
    """Kind and ordinal of `cell-0` (the core), `cell-1`, `standalone-0`, ... Raises ValueError that says what a name looks like."""
    pool, dash, number = cell.rpartition("-")
    if pool not in ("cell", "standalone") or not dash or not number.isdecimal():
        raise ValueError(f"{cell!r} is not the name of a cell; cells are called cell-0 (the core), cell-1, ..., standalone-0, ...")
    if pool == "standalone":
        return CellKind.STANDALONE, int(number)
    return (CellKind.CORE if int(number) == 0 else CellKind.SATELLITE), int(number)

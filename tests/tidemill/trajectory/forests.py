"""Turns as an execution records them: calls go on, fork, are retried, ask for summaries. Every token has a number of its own."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from tidemill.trajectory.records import Piece, Turn


def turn(name: str, parent: str = "", sampled: int = 4, given: int = 3, agent: str = "", summary: bool = False) -> Turn:
    piece = Piece("cell-0", range(sampled), (-0.5,) * sampled, (1,) * sampled)
    context = range(100, 100 + given)
    return Turn(name, "g1-0", 1, parent, agent, context, (piece,), "stop", 0.0, 1.0, "chat", summary=summary)


@st.composite
def forests(draw: st.DrawFn) -> list[Turn]:
    """In an order in which a gateway may tell them: any, because deliveries are repeated."""
    numbers = count(1)
    turns: list[Turn] = []
    for n in range(draw(st.integers(0, 12))):
        parent = draw(st.sampled_from(["", *(t.id for t in turns)]))
        agent = draw(st.sampled_from(["", "", "helper", "other"]))
        pieces = tuple(_piece(f"cell-{place}", [next(numbers) for _ in range(size)]) for place, size in enumerate(draw(sizes)))
        context = tuple(next(numbers) for _ in range(draw(st.integers(0, 3))))
        turns.append(Turn(f"t{n}", "g1-0", 1, parent, agent, context, pieces, "stop", n, n + 1, "chat", summary=draw(st.booleans())))
    return draw(st.permutations(turns))


sizes = st.lists(st.integers(0, 4), max_size=3)


def _piece(cell: str, token_ids: list[int]) -> Piece:
    """Log-probability and version tell which token they belong to."""
    return Piece(cell, token_ids, [-token / 1024 for token in token_ids], [token % 7 for token in token_ids])

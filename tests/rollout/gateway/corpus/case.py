"""A case of the corpus: a harness at work, and the tree that must come of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from textwrap import dedent

from tests.rollout.gateway.corpus.desk import Desk

Play = Callable[[Desk], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    name: str
    harness: str  # preset
    play: Play
    tree: str


class Cases(list[Case]):
    """Of one harness or kind."""

    def __init__(self, harness: str) -> None:
        super().__init__()
        self._harness = harness

    def __call__(self, tree: str) -> Callable[[Play], Play]:
        """`tree` in the notation of `notation`."""

        def add(play: Play) -> Play:
            self.append(Case(play.__name__, self._harness, play, dedent(tree)))
            return play

        return add

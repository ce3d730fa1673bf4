"""The finished turns of one execution, and which of them a request continues. Pure.

The turns form a tree. A request walks down from the root: given messages lead to a turn when they are, in canonical form, those it
was asked with, and the answer that follows is that turn's own, by the turn id it carries or by its canonical form. What is left at
the end of the walk is new. So retries, sub-agents, compaction and edited histories branch off where they differ, and everything
before stays exactly the tokens it was.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tidemill.trajectory.records import Turn
from tidemill_rollout.gateway.conversation import Answer, Message, Tool, canonical, tools_digest


class Kept(msgspec.Struct, frozen=True):
    """A finished turn as the journal holds it."""

    turn: Turn
    answer: Answer
    after: str  # turn that the conversation continued; `turn.parent` is "" instead when it had to be rendered whole
    given: bytes  # digest of the messages between that turn and this one
    request: bytes  # digest of the request
    recomputed: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands in the tree."""

    after: str  # turn it continues, "" for a new root
    given: bytes
    new: tuple[Message, ...]  # messages after that turn


@dataclass(frozen=True, slots=True)
class _Node:
    answer: Answer
    canonical: bytes
    parent: str
    tokens: array[int]  # given, then sampled
    sampled: int


@dataclass(slots=True)
class History:
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _children: dict[tuple[str, bytes], list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, kept: Kept) -> None:
        turn, answer = kept.turn, kept.answer
        sampled = turn.sampled_ids
        tokens = array("i", turn.context_ids)
        tokens.extend(sampled)
        self._nodes[turn.id] = _Node(answer, canonical(answer.message), turn.parent, tokens, len(sampled))
        self._children.setdefault((kept.after, kept.given), []).append(turn.id)

    def place(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Place:
        """Find the deepest known turn that these messages continue."""
        messages = list(messages)
        after, start = "", 0
        given = hashlib.blake2b(tools_digest(tools), digest_size=16)
        for position, message in enumerate(messages):
            known = self._answered(after, given.digest(), message) if message.role == "assistant" else ""
            if known:
                after, start = known, position + 1
                given = hashlib.blake2b(digest_size=16)
                _sort_results(messages, start, self._nodes[known].answer)
            else:
                given.update(canonical(message))
        return Place(after, given.digest(), tuple(messages[start:]))

    def answer(self, turn: str) -> Answer:
        return self._nodes[turn].answer

    def last_token(self, turn: str) -> int | None:
        """The last token sampled for this turn."""
        node = self._nodes[turn]
        return node.tokens[-1] if node.sampled else None

    def tokens(self, turn: str) -> list[int]:
        """All tokens from the root to the end of this turn's answer."""
        path: list[_Node] = []
        while turn:
            path.append(self._nodes[turn])
            turn = path[-1].parent
        tokens: list[int] = []
        for node in reversed(path):
            tokens.extend(node.tokens)
        return tokens

    def _answered(self, after: str, given: bytes, message: Message) -> str:
        candidates = self._children.get((after, given), ())
        if message.turn in candidates:
            return message.turn
        if message.turn in self._nodes:
            return ""  # it is another turn's answer, moved here: compaction keeps the last ones verbatim
        form = canonical(message)
        return next((turn for turn in reversed(candidates) if self._nodes[turn].canonical == form), "")


def _sort_results(messages: list[Message], start: int, answer: Answer) -> None:
    """Put the results that follow a turn into the order of its calls. Harnesses send them as they complete."""
    order = {call.id: position for position, call in enumerate(answer.calls)}
    end = start
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    messages[start:end] = sorted(messages[start:end], key=lambda result: order.get(result.call_id, len(order)))

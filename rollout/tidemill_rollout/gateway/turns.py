"""The finished turns of one execution, and which of them a request continues. Pure.

The turns form a tree. A request walks down from the root: given messages lead to a turn when they are, in canonical form, those it
was asked with, and the answer that follows is that turn's own, by the turn id it carries or by its canonical form. What is left at
the end of the walk is new. So retries, sub-agents, compaction and edited histories branch off where they differ, and everything
before stays exactly the tokens it was.

A walk can be stopped after any message, kept, and gone on with later: the next request of a conversation walks only what is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tidemill.trajectory.columns import INT, Ints, column, joined
from tidemill.trajectory.records import Turn
from tidemill_rollout.gateway.conversation import Answer, Message, Tool, canonical, tools_digest

MOST_KEYS = 200_000
"""Places that walks have looked at and that are remembered. Beyond, they are forgotten, and the walks that are kept with them."""


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
class Stand:
    """One turn that the messages walked so far continue. `given` is shared between walks: it is copied before it is updated."""

    after: str
    given: hashlib.blake2b
    start: int  # the messages from here on came after that turn


@dataclass(frozen=True, slots=True)
class Walk:
    """How far a walk has come. Of several stands (answers of the same words to the same messages) the newest is first."""

    position: int  # messages walked
    stands: tuple[Stand, ...]
    epoch: int  # of the history; it advances when a walk of before would come elsewhere now


@dataclass(frozen=True, slots=True)
class _Node:
    answer: Answer
    canonical: bytes
    parent: str
    tokens: Ints  # given, then sampled
    sampled: int


@dataclass(slots=True)
class History:
    epoch: int = 0
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _children: dict[tuple[str, bytes], list[str]] = field(default_factory=dict)
    _looked_at: set[tuple[str, bytes]] = field(default_factory=set)
    _below: dict[str, list[str]] = field(default_factory=dict)  # by the turn whose tokens they go on with

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, kept: Kept) -> None:
        turn, answer = kept.turn, kept.answer
        sampled = turn.sampled_ids
        tokens = joined(INT, (turn.context_ids, sampled))
        self._nodes[turn.id] = _Node(answer, canonical(answer.message), turn.parent, tokens, len(sampled))
        self._below.setdefault(turn.parent, []).append(turn.id)
        key = (kept.after, kept.given)
        self._children.setdefault(key, []).append(turn.id)
        if key in self._looked_at:
            self._forget_walks()

    def begin(self, tools: bytes) -> Walk:
        """`tools` is their digest."""
        return Walk(0, (Stand("", hashlib.blake2b(tools, digest_size=16), 0),), self.epoch)

    def advance(self, walk: Walk, messages: Sequence[Message], end: int) -> Walk:
        """Walk on to `end`, or to the results before it that more may follow: their order is that of the calls, once all are there."""
        stands = [Stand(stand.after, stand.given.copy(), stand.start) for stand in walk.stands]
        position = walk.position
        while position < end:
            message = messages[position]
            if message.role == "tool" and stands[0].after and position == stands[0].start:
                after_results = _after_results(messages, position)
                if after_results >= end:
                    break
                for stand in stands:
                    for result in self._in_order(stand, messages[position:after_results]):
                        stand.given.update(canonical(result))
                position = after_results
                continue
            position += 1
            known = self._answered(stands, message) if message.role == "assistant" else []
            if known:
                stands = [Stand(turn, hashlib.blake2b(digest_size=16), position) for turn in known]
            else:
                form = canonical(message)
                for stand in stands:
                    stand.given.update(form)
        return Walk(position, tuple(stands), walk.epoch)

    def end(self, walk: Walk, messages: Sequence[Message]) -> Place:
        """Where all these messages stand, of which `walk` has seen those before its position."""
        walk = self.advance(walk, messages, len(messages))
        stand, given = walk.stands[0], walk.stands[0].given
        rest = self._in_order(stand, messages[walk.position :])  # nothing, or results
        if rest:
            given = given.copy()
            for result in rest:
                given.update(canonical(result))
        results = _after_results(messages, stand.start) if stand.after else stand.start
        new = (*self._in_order(stand, messages[stand.start : results]), *messages[results:])
        return Place(stand.after, given.digest(), new)

    def place(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> Place:
        """Find the deepest known turn that these messages continue."""
        return self.end(self.begin(tools_digest(tools)), messages)

    def answer(self, turn: str) -> Answer:
        return self._nodes[turn].answer

    def last_token(self, turn: str) -> int | None:
        """The last token sampled for this turn."""
        node = self._nodes[turn]
        return node.tokens[-1] if node.sampled else None

    def tokens(self, turn: str, more: Ints = ()) -> Ints:
        """All tokens from the root to the end of this turn's answer, then `more`."""
        path: list[Ints] = [more]
        while turn:
            node = self._nodes[turn]
            path.append(node.tokens)
            turn = node.parent
        return joined(INT, reversed(path))

    def deepest(self, prompt: Ints, after: str = "") -> tuple[str, int, int]:
        """The deepest turn with whose tokens this prompt begins, how many those are, and how many turns they are beyond `after`.

        For messages that nobody recognises: split, merged or quoted otherwise than they were, they may still be the same tokens.
        """
        tokens = column(INT, prompt)
        best = (after, len(self.tokens(after)), 0)
        found = [best]
        while found:
            turn, position, depth = found.pop()
            if depth > best[2]:
                best = (turn, position, depth)
            for below in self._below.get(turn, ()):
                own = self._nodes[below].tokens
                if tokens[position : position + len(own)] == own:
                    found.append((below, position + len(own), depth + 1))
        return best

    def _answered(self, stands: Sequence[Stand], message: Message) -> list[str]:
        """Turns whose answer this is, after one of these: the one it names, else all of the same form, the newest first."""
        named = message.turn
        form = b""
        found: list[str] = []
        for stand in stands:
            key = (stand.after, stand.given.digest())
            self._looked_at.add(key)
            candidates = self._children.get(key, ())
            if named in candidates:
                return [named]
            if named in self._nodes or not candidates:
                continue  # the first: it is another turn's answer, moved here: compaction keeps the last ones verbatim
            form = form or canonical(message)
            found += [turn for turn in reversed(candidates) if self._nodes[turn].canonical == form]
        if len(self._looked_at) > MOST_KEYS:
            self._forget_walks()
        return found

    def _in_order(self, stand: Stand, results: Sequence[Message]) -> Sequence[Message]:
        """Results that follow a turn, in the order of its calls. Harnesses send them as they complete."""
        if len(results) < 2 or not stand.after:
            return results
        order = {call.id: position for position, call in enumerate(self._nodes[stand.after].answer.calls)}
        return sorted(results, key=lambda result: order.get(result.call_id, len(order)))

    def _forget_walks(self) -> None:
        self.epoch += 1
        self._looked_at.clear()


def _after_results(messages: Sequence[Message], start: int) -> int:
    end = start
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    return end

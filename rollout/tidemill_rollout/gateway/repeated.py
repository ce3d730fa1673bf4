"""Requests that repeat themselves. A harness sends its whole history with every call, 0.5 to 4 MB of which 2 kB are new.

The bytes of each conversation's last request are kept, with what was made of them after each element of its messages: the messages, the
walk down the tree of turns, the running digest. Of a new request that begins with the same bytes only the rest is parsed, walked and
digested. Everything else goes the long way, with the same result.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tidemill_rollout.gateway.conversation import Ask, Fault, Message, digest_messages, digest_request, joined, running_over, tools_digest
from tidemill_rollout.gateway.elements import Split, agreed, split, without
from tidemill_rollout.gateway.turns import History, Place, Walk
from tidemill_rollout.sandbox.relay import CALL_HEADER, DELIVERED_HEADER

SHORTEST_BYTES = 8192
"""A shorter request is parsed faster than it is compared."""

MOST_BYTES = 512 * 2**20
"""Of all that is kept, and at most a quarter of the memory that the process may use. Then what was used longest ago goes, and its
conversation's next request is parsed whole."""

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

MOST_CONVERSATIONS = 16
"""Of one execution: main and sub-agents, each with a history of its own."""

REWRITTEN = 4
"""Elements at the end that a harness may write otherwise in its next request: Claude Code moves its cache markers on."""

_BYTES_OF_ELEMENT = 1500

_ANY = b'{"role":"user","content":"x"}'
"""An element that each wire takes as one message: in its place the rest of a request can be parsed alone."""

Parse = Callable[[bytes, Mapping[str, str]], Ask]


@dataclass(frozen=True, slots=True)
class Reading:
    """A request, and what its turn is found by."""

    ask: Ask
    walk: Walk
    running: hashlib.blake2b  # over all messages
    tools: bytes  # digest

    @property
    def digest(self) -> bytes:
        """`request_digest` of it."""
        return digest_request(self.running, self.ask, self.tools)

    def place(self, history: History) -> Place:
        """Where it stands now."""
        walk = self.walk if self.walk.epoch == history.epoch else history.begin(self.tools)
        return history.end(walk, self.ask.messages)


@dataclass(frozen=True, slots=True)
class _Mark:
    """After one element."""

    messages: int  # so many, those from the request's own fields included; the last is whole, no part of an answer follows
    walk: Walk
    running: hashlib.blake2b


@dataclass(slots=True)
class _Conversation:
    parse: Parse
    raw: bytes
    start: int
    ends: list[int]
    marks: list[_Mark | None]  # before the first element, and after each; None in the middle of an answer
    messages: list[Message]
    lead: tuple[Message, ...]  # those that come from fields of the request's own
    ask: Ask  # without messages
    tools: bytes
    around: bytes  # the request without its elements
    headers: tuple[tuple[str, str], ...]

    @property
    def size(self) -> int:
        return 2 * len(self.raw) + len(self.around) + _BYTES_OF_ELEMENT * len(self.ends)


def room(limits: Sequence[Path] = _LIMITS) -> int:
    """Bytes that may be kept where the process may use what its control group says, in version 2 or 1; "max" is no limit."""
    said = [int(text) for path in limits if path.is_file() and (text := path.read_text().strip()).isdigit()]
    return min([MOST_BYTES, *(limit // 4 for limit in said)])


@dataclass(slots=True)
class Requests:
    """What is kept of the requests of all executions."""

    most_bytes: int = field(default_factory=room)
    whole: int = 0  # requests that were long and had to be parsed whole
    repeated: int = 0
    _kept: OrderedDict[tuple[str, int], _Conversation] = field(default_factory=OrderedDict)  # by execution and a number; last used last
    _of: dict[str, list[int]] = field(default_factory=dict)  # numbers of an execution, last used last
    _bytes: int = 0
    _next: int = 0

    def read(self, execution: str, history: History, parse: Parse, elements: str, raw: bytes, headers: Mapping[str, str]) -> Reading:
        """Raises `Fault`, as `parse` does."""
        if len(raw) >= SHORTEST_BYTES:
            try:
                reading = self._again(execution, history, parse, elements, raw, headers)
            except Fault:  # the long way says where in the request
                reading = None
            if reading is not None:
                return reading
            self.whole += 1
        return read_whole(history, parse, raw, headers)

    def forget(self, execution: str) -> None:
        for number in self._of.pop(execution, []):
            self._bytes -= self._kept.pop((execution, number)).size

    def _again(self, execution: str, history: History, parse: Parse, elements: str, raw: bytes, headers: Mapping[str, str]) -> Reading | None:
        number, known, count = self._best(execution, parse, raw)
        if known is None:
            pieces, shift = split(raw, elements), 0
        else:
            cut = without(raw, known.start, known.ends[count - 1])
            if cut is None:
                return None
            pieces, shift = split(cut[0], elements), cut[1]
        if pieces is None or not (count or pieces.elements):
            return None
        conversation = _grown(history, parse, elements, known, count, pieces, shift, raw, headers)
        if conversation is None:
            return None
        self.repeated += known is not None
        if number is not None and known is not None and count >= len(known.ends) - REWRITTEN:
            self._drop(execution, number)
        self._keep(execution, conversation)
        mark = conversation.marks[-1]
        assert mark is not None  # nothing follows the last element
        ask = msgspec.structs.replace(conversation.ask, messages=tuple(conversation.messages))
        return Reading(ask, mark.walk, mark.running, conversation.tools)

    def _best(self, execution: str, parse: Parse, raw: bytes) -> tuple[int | None, _Conversation | None, int]:
        """The conversation that agrees furthest, and after how many elements it can be gone on with."""
        best: tuple[int | None, _Conversation | None, int] = (None, None, 0)
        for number in reversed(self._of.get(execution, [])):
            known = self._kept[execution, number]
            count = agreed(known.raw, known.ends, raw) if known.parse is parse else 0
            while count and known.marks[count] is None:
                count -= 1
            if count > best[2]:
                best = (number, known, count)
            if count and count >= len(known.ends) - REWRITTEN:
                break
        return best

    def _keep(self, execution: str, conversation: _Conversation) -> None:
        numbers = self._of.setdefault(execution, [])
        self._next += 1
        numbers.append(self._next)
        self._kept[execution, self._next] = conversation
        self._bytes += conversation.size
        if len(numbers) > MOST_CONVERSATIONS:
            self._drop(execution, numbers[0])
        while self._bytes > self.most_bytes:
            self._drop(*next(iter(self._kept)))

    def _drop(self, execution: str, number: int) -> None:
        self._bytes -= self._kept.pop((execution, number)).size
        self._of[execution].remove(number)
        if not self._of[execution]:
            del self._of[execution]


def read_whole(history: History, parse: Parse, raw: bytes, headers: Mapping[str, str]) -> Reading:
    """The long way. Raises `Fault`."""
    ask = parse(raw, headers)
    ask = msgspec.structs.replace(ask, messages=joined(ask.messages))
    tools = tools_digest(ask.tools)
    return Reading(ask, history.begin(tools), running_over(ask.messages), tools)


def _grown(
    history: History,
    parse: Parse,
    elements: str,
    known: _Conversation | None,
    count: int,
    pieces: Split,
    shift: int,
    raw: bytes,
    headers: Mapping[str, str],
) -> _Conversation | None:
    """The conversation of this request, of which `count` elements are those of `known` and the rest are `pieces`."""
    around, shown = pieces.around(b""), _shown(headers)
    if known is not None and known.around == around and known.headers == shown:
        ask, lead, tools = known.ask, known.lead, known.tools
    else:
        parsed = parse(pieces.around(_ANY), headers)
        lead, ask = parsed.messages[:-1], msgspec.structs.replace(parsed, messages=())
        tools = tools_digest(ask.tools)
    form = b'{"%s":[%s]}'
    new = [_messages(parse(form % (elements.encode(), pieces.element(position)), {})) for position in range(len(pieces.elements))]
    conversation = _Conversation(parse, raw, pieces.start, [], [], list(lead), lead, ask, tools, around, shown)
    counts = [len(lead)]  # messages after each element, -1 in the middle of an answer
    usable = False
    if known is not None:
        same = tools == known.tools and lead == known.lead
        begun = known.marks[count]
        assert begun is not None
        usable = same and begun.walk.epoch == history.epoch
        drift = len(lead) - len(known.lead)
        counts += [-1 if mark is None else mark.messages + drift for mark in known.marks[1 : count + 1]]
        conversation.ends += known.ends[:count]
        conversation.messages += known.messages[len(known.lead) : begun.messages]
        conversation.marks += known.marks[: count + 1] if usable else [None] * (count + 1)
    if not usable:
        conversation.marks[:1] = [_Mark(len(lead), history.begin(tools), running_over(lead))]
    for position, messages in enumerate(new):
        for message in messages:
            changed = _push(conversation.messages, message)
            _reopen(conversation.marks, counts, changed)
        conversation.ends.append(pieces.elements[position][1] + shift)
        conversation.marks.append(None)
        counts.append(len(conversation.messages))
    _mark(history, conversation, counts)
    return conversation


def _messages(ask: Ask) -> tuple[Message, ...]:
    return ask.messages[ask.lead :]


def _push(messages: list[Message], message: Message) -> int:
    """Put a message behind the others, as `joined` does. From which on they are others than before."""
    at = len(messages) - 1
    if message.part:
        while at >= 0 and messages[at].role == "tool":
            at -= 1
        if at >= 0 and messages[at].part:
            tail = joined((*messages[at:], message))
            changed = at if tail[0] is not messages[at] else len(messages)
            messages[at:] = tail
            return changed
    messages.append(message)
    return len(messages) - 1


def _reopen(marks: list[_Mark | None], counts: list[int], changed: int) -> None:
    """An answer went on: after which elements it was not whole is known now."""
    position = len(counts) - 1
    while position >= 0 and (counts[position] < 0 or counts[position] > changed):
        marks[position], counts[position] = None, -1
        position -= 1


def _mark(history: History, conversation: _Conversation, counts: list[int]) -> None:
    """Walk and digest from the last mark that holds to the end."""
    marks, messages = conversation.marks, conversation.messages
    at = max(position for position, mark in enumerate(marks) if mark is not None)
    last = marks[at]
    assert last is not None
    for position in range(at + 1, len(marks)):
        count = counts[position]
        if count < 0:
            continue
        running = last.running.copy()
        digest_messages(running, messages[last.messages : count])
        walk = last.walk if messages[count - 1].role == "tool" else history.advance(last.walk, messages, count)
        marks[position] = last = _Mark(count, walk, running)


def _shown(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Headers that may say something of the request: all but those of the connection, and of tracing."""
    return tuple((name, value) for name, value in headers.items() if name.lower() not in _MEANINGLESS)


_MEANINGLESS = frozenset(
    ("content-length", "traceparent", "tracestate", "x-request-id", "x-client-request-id", "date", CALL_HEADER.lower(), DELIVERED_HEADER.lower())
)

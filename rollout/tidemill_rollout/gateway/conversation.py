"""The one form of a conversation that every wire is translated into, and the canonical form by which a turn is recognised again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "calls", "stop-text"]

TURN_ID = re.compile(r"t[0-9a-f]{20}")
_CALL_ID = re.compile(r"(t[0-9a-f]{20})x\d+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_EXACT_DIGITS = 16
"""A float holds so many; longer numbers are text (a commit's hash may be all digits)."""


class Fault(Exception):
    """A request that gets an error answer, in the shape of its wire."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


class Away(Fault):
    """Who would answer is away for a moment: this gateway stops, or the execution's own does not answer.

    A sandbox's relay is not told but cut off: then it asks again by itself, and the harness, which may know no retry, does not notice.
    """

    def __init__(self, message: str) -> None:
        super().__init__(503, message, retry_after=2)


class TooLong(Fault):
    """The prompt leaves no room for an answer. Harnesses compact their history when told so in the words of their wire."""

    def __init__(self, tokens: int, maximum: int) -> None:
        super().__init__(400, f"prompt is too long: {tokens} tokens > {maximum} maximum")
        self.tokens = tokens
        self.maximum = maximum


class ToolCall(msgspec.Struct, frozen=True):
    id: str  # `TURNxN` for calls of our own turns, whatever the harness made up for others
    name: str
    arguments: str  # a JSON object, as the policy wrote it

    @property
    def turn(self) -> str:
        found = _CALL_ID.fullmatch(self.id)
        return found[1] if found else ""

    @property
    def parsed_arguments(self) -> Any:
        """As chat templates want them: the object, or the text where it is not JSON."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments


class Message(msgspec.Struct, frozen=True):
    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()  # of the assistant
    call_id: str = ""  # of a tool's result
    signature: str = ""  # turn id that came back with a thinking block
    part: bool = False  # of an answer that its wire sends in several elements; `joined` makes them one

    @property
    def turn(self) -> str:
        """Id of the turn that this assistant message says it is, or ""."""
        return self.signature or next((call.turn for call in self.calls if call.turn), "")


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    namespace: str = ""  # Responses: the name is then NAMESPACE.NAME
    freeform: bool = False  # Responses: its input is plain text, which the policy writes as the argument `input`


class Ask(msgspec.Struct, frozen=True):
    """One model call as the harness put it."""

    wire: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    model: str = ""  # any name is accepted and given back
    agent: str = ""  # the harness's id of a sub-agent
    parent_agent: str = ""  # who started it; "" is the main agent
    summary: bool = False  # asks for the summary of a compaction
    thinking: bool = False  # the harness takes thinking blocks (Messages), reasoning with encrypted content (Responses)
    usage: bool = False  # chat streams: the harness wants a last chunk with token counts
    logprobs: bool = False  # chat: the answer shows each token and its log-probability
    lead: int = 0  # so many of the messages come from fields of the request's own (system, instructions), the others each from an element
    asked: dict[str, Any] = {}  # sampling parameters that the harness sent; recorded, never obeyed


class ShownToken(msgspec.Struct, frozen=True):
    """A sampled token for a harness that asked for log-probabilities."""

    text: bytes  # one character may be several tokens
    logprob: float


class Answer(msgspec.Struct, frozen=True):
    """One finished turn as the harness sees it."""

    turn: str
    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: Finish
    prompt_tokens: int
    sampled_tokens: int
    stop_text: str = ""  # the stop string that ended it
    shown: tuple[ShownToken, ...] = ()  # when `Ask.logprobs`: all sampled tokens, the end marker too

    @property
    def message(self) -> Message:
        return Message("assistant", self.text, self.reasoning, self.calls, signature=self.turn)


def joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Parts of one answer made one message. Joining again what is joined changes nothing, so new elements may be put behind old messages.

    A part belongs to the answer before it, also when results stand between them, unless turn ids say otherwise or it is a thought
    after words: with a thought the next answer begins.
    """
    whole: list[Message] = []
    for message in messages:
        at = len(whole) - 1
        while message.part and message.turn and at >= 0 and whole[at].role == "tool":
            at -= 1
        if message.part and at >= 0 and whole[at].part and _continues(whole[at], message, adjacent=at == len(whole) - 1):
            whole[at] = _one(whole[at], message)
        else:
            whole.append(message)
    return tuple(whole)


def canonical(message: Message) -> bytes:
    """What of a message must be equal for it to be the same message.

    Left out is what harnesses change between two calls without meaning it: white space around an answer, reasoning, the
    formatting of tool arguments (they are re-serialised: keys in another order, 1000.0 as 1000, "1" as 1 where the schema says number).
    """
    if message.role == "assistant":
        calls = [(call.name, _canonical_arguments(call.arguments)) for call in message.calls]
        return msgspec.msgpack.encode(("assistant", message.text.strip(), calls))
    return msgspec.msgpack.encode((message.role, message.call_id, message.text))


def tools_digest(tools: tuple[Tool, ...]) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(tools), digest_size=16).digest() if tools else b""


def request_digest(ask: Ask) -> bytes:
    """Equal for a request and its retry, also when the retry is no longer streamed (Claude Code falls back to that)."""
    return digest_request(running_over(ask.messages), ask, tools_digest(ask.tools))


def running_over(messages: Iterable[Message]) -> hashlib.blake2b:
    running = hashlib.blake2b(digest_size=16)
    digest_messages(running, messages)
    return running


def digest_messages(running: hashlib.blake2b, messages: Iterable[Message]) -> None:
    """The part of `request_digest` that grows with a conversation: what it is after some messages can be kept and gone on with."""
    for message in messages:
        running.update(canonical(message))
        running.update(message.turn.encode())


def digest_request(running: hashlib.blake2b, ask: Ask, tools: bytes) -> bytes:
    """The rest of it; `running` has all messages, and stays as it is. `tools` is their digest."""
    whole = running.copy()
    whole.update(msgspec.msgpack.encode((ask.wire, ask.agent, ask.max_tokens, ask.stop)))
    whole.update(tools)
    return whole.digest()


def _continues(answer: Message, part: Message, *, adjacent: bool) -> bool:
    if part.turn and answer.turn:
        return part.turn == answer.turn
    thought = not (part.text or part.calls)
    return adjacent and not (thought and (answer.text or answer.calls))


def _one(answer: Message, part: Message) -> Message:
    return Message(
        "assistant",
        "\n".join(filter(None, (answer.text, part.text))),
        "\n".join(filter(None, (answer.reasoning, part.reasoning))),
        answer.calls + part.calls,
        signature=answer.signature or part.signature,
        part=True,
    )


def _canonical_arguments(text: str) -> str:
    try:
        return json.dumps(_plain(json.loads(text)), sort_keys=True)
    except (ValueError, RecursionError):
        return text.strip()


def _plain(value: Any) -> Any:
    """Numbers, and text that is one, in one form."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value) if len(value) < _EXACT_DIGITS else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value

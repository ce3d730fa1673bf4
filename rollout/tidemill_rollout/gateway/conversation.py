"""The one form of a conversation that every wire is translated into, and the canonical form by which a turn is recognised again."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "calls", "stop-text"]

TURN_ID = re.compile(r"t[0-9a-f]{20}")
_CALL_ID = re.compile(r"(t[0-9a-f]{20})x\d+")


class Fault(Exception):
    """A request that gets an error answer, in the shape of its wire."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after


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

    @property
    def turn(self) -> str:
        """Id of the turn that this assistant message says it is, or ""."""
        return self.signature or next((call.turn for call in self.calls if call.turn), "")


class Tool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


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
    thinking: bool = False  # Messages: the harness understands thinking blocks
    usage: bool = False  # chat streams: the harness wants a last chunk with token counts


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

    @property
    def message(self) -> Message:
        return Message("assistant", self.text, self.reasoning, self.calls, signature=self.turn)


def canonical(message: Message) -> bytes:
    """What of a message must be equal for it to be the same message.

    Left out is what harnesses change between two calls without meaning it: white space around an answer, reasoning, the
    formatting of tool arguments (Claude Code re-serialises them, 1000.0 comes back as 1000).
    """
    if message.role == "assistant":
        calls = [(call.name, _canonical_arguments(call.arguments)) for call in message.calls]
        return msgspec.msgpack.encode(("assistant", message.text.strip(), calls))
    return msgspec.msgpack.encode((message.role, message.call_id, message.text))


def tools_digest(tools: tuple[Tool, ...]) -> bytes:
    return hashlib.blake2b(msgspec.msgpack.encode(tools), digest_size=16).digest() if tools else b""


def request_digest(ask: Ask) -> bytes:
    """Equal for a request and its retry, also when the retry is no longer streamed (Claude Code falls back to that)."""
    running = hashlib.blake2b(digest_size=16)
    running.update(msgspec.msgpack.encode((ask.wire, ask.agent, ask.max_tokens, ask.stop)))
    running.update(tools_digest(ask.tools))
    for message in ask.messages:
        running.update(canonical(message))
        running.update(message.turn.encode())
    return running.digest()


def _canonical_arguments(text: str) -> str:
    try:
        return json.dumps(_plain_numbers(json.loads(text)), sort_keys=True)
    except (ValueError, RecursionError):
        return text.strip()


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain_numbers(inner) for inner in value]
    return value

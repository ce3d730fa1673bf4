"""Anthropic Messages."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tidemill_rollout.gateway.conversation import TURN_ID, Answer, Ask, Fault, Message, Tool, ToolCall
from tidemill_rollout.gateway.wires.asked import Asked

_FINISH = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use", "stop-text": "stop_sequence"}
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}
_CALL_PREFIX = "toolu_"
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""The line with which Claude Code's system text begins; its hash changes from task to task and at compaction."""

_THOUGHTS = ("thinking", "redacted_thinking")
_UNPARSED = "__unparsedToolInput"
"""Claude Code's name for a tool's input that was no JSON."""


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    tool_use_id: str = ""
    tool_name: str = ""
    content: str | list[_Block] | None = None
    thinking: str = ""
    signature: str | None = None


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(msgspec.Struct):
    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _Thinking(msgspec.Struct):
    type: str = "disabled"


class _Effort(msgspec.Struct):
    effort: Any = None


class _Unparsed(msgspec.Struct, forbid_unknown_fields=True):
    text: str = msgspec.field(name=_UNPARSED)


class _Body(Asked, kw_only=True):
    messages: list[_Message]
    model: str = ""
    max_tokens: int | None = None
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: _Thinking | None = None
    output_config: _Effort | None = None


_decoder = msgspec.json.Decoder(_Body)


def parse(raw: bytes, headers: Mapping[str, str]) -> Ask:
    """Raises `Fault`."""
    try:
        body = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise Fault(400, f"not a messages request: {cause}") from cause
    if not body.messages:
        raise Fault(400, "messages: at least one is needed")
    if body.max_tokens is not None and body.max_tokens < 1:
        raise Fault(400, f"max_tokens is {body.max_tokens}: at least 1 is needed")
    if body.output_config is not None:
        body.reasoning_effort = body.output_config.effort
    blocks = _blocks(body.system)
    told = _system(blocks, "system")
    lead = (Message("system", told),) if told else ()
    said = [message for position, one in enumerate(body.messages) for message in _messages(one, f"messages[{position}]")]
    return Ask(
        wire="messages",
        messages=(*lead, *said),
        # Tools of other types are run by Anthropic's servers; the policy can not use them.
        tools=tuple(Tool(t.name, t.description or "", t.input_schema) for t in body.tools or () if t.input_schema is not None),
        max_tokens=body.max_tokens,
        stop=tuple(filter(None, body.stop_sequences or ())),
        stream=bool(body.stream),
        model=body.model,
        agent=_header(headers, "x-claude-code-agent-id"),
        parent_agent=_header(headers, "x-claude-code-parent-agent-id"),
        thinking=body.thinking is not None and body.thinking.type != "disabled",
        lead=len(lead),
        asked=body.asked(),
    )


def error(fault: Fault) -> bytes:
    kind = _KINDS.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
    request = f"req_{secrets.token_hex(10)}"
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": fault.message}, "request_id": request})


class Reply:
    """One answer on its way to one connection. A fresh id each: two answers with one id are merged by Claude Code."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._id = f"msg_{secrets.token_hex(12)}"
        self._pulsed = False

    def whole(self, answer: Answer) -> bytes:
        content: list[dict[str, Any]] = []
        if self._ask.thinking:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": answer.turn})
        if answer.text or not answer.calls:
            content.append({"type": "text", "text": answer.text})
        for call in answer.calls:
            content.append({**_tool_use(call), "input": msgspec.Raw(call.arguments.encode())})
        return msgspec.json.encode(self._envelope(content, answer.prompt_tokens, answer))

    def opening(self, prompt_tokens: int) -> bytes:
        return _event("message_start", message=self._envelope([], prompt_tokens))

    def pulse(self) -> bytes:
        """An empty delta: Claude Code's watchdog counts it, unlike a ping. A thinking block where the harness knows those."""
        events = b""
        if not self._pulsed:
            self._pulsed = True
            block = {"type": "thinking", "thinking": "", "signature": ""} if self._ask.thinking else {"type": "text", "text": ""}
            events = _event("content_block_start", index=0, content_block=block)
        empty = {"type": "thinking_delta", "thinking": ""} if self._ask.thinking else {"type": "text_delta", "text": ""}
        return events + _event("content_block_delta", index=0, delta=empty)

    def closing(self, answer: Answer) -> bytes:
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if self._ask.thinking:
            deltas = [{"type": "thinking_delta", "thinking": answer.reasoning}] if answer.reasoning else []
            blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*deltas, {"type": "signature_delta", "signature": answer.turn}]))
        if answer.text or not answer.calls or (self._pulsed and not self._ask.thinking):
            blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": answer.text}] if answer.text else []))
        for call in answer.calls:
            # The input counts only as deltas; in the start event it is ignored.
            blocks.append(({**_tool_use(call), "input": {}}, [{"type": "input_json_delta", "partial_json": call.arguments}]))
        events = []
        for index, (start, deltas) in enumerate(blocks):
            if index > 0 or not self._pulsed:
                events.append(_event("content_block_start", index=index, content_block=start))
            events += [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
            events.append(_event("content_block_stop", index=index))
        delta = {"stop_reason": _FINISH[answer.finish], "stop_sequence": answer.stop_text or None}
        events.append(_event("message_delta", delta=delta, usage={"output_tokens": answer.sampled_tokens}))
        return b"".join([*events, _event("message_stop")])

    def failure(self, fault: Fault) -> bytes:
        return b"event: error\ndata: " + error(fault) + b"\n\n"

    def _envelope(self, content: list[dict[str, Any]], prompt_tokens: int, answer: Answer | None = None) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._ask.model,
            "content": content,
            "stop_reason": _FINISH[answer.finish] if answer else None,
            "stop_sequence": (answer.stop_text or None) if answer else None,
            "usage": {
                "input_tokens": prompt_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": answer.sampled_tokens if answer else 1,
            },
        }


def _messages(message: _Message, where: str) -> list[Message]:
    """One message of the wire may be several: tool results first, each its own, then what the user says."""
    blocks = _blocks(message.content)
    if message.role == "assistant":
        return [_answer(blocks, where)]
    if message.role == "system":
        return [Message("system", _system(blocks, where))]
    results = [Message("tool", _noted(_blocks(block.content)), call_id=_inner(block.tool_use_id)) for block in blocks if block.type == "tool_result"]
    said = [block for block in blocks if block.type != "tool_result"]
    if results:  # Claude Code 2.1.220 sends a PDF that was read beside its result
        return [*results, Message("user", _noted(said))] if said else results
    return [Message("user", _text(said, where))]


def _answer(blocks: list[_Block], where: str) -> Message:
    said = [block for block in blocks if block.type not in ("tool_use", *_THOUGHTS)]
    calls = tuple(ToolCall(_inner(b.id), b.name, _written(b.input, where)) for b in blocks if b.type == "tool_use")
    reasoning = "\n".join(block.thinking for block in blocks if block.type == "thinking")
    signature = next((b.signature for b in blocks if b.type == "thinking" and TURN_ID.fullmatch(b.signature or "")), None)
    return Message("assistant", _text(said, where), reasoning, calls, signature=signature or "")


def _written(raw: msgspec.Raw, where: str) -> str:
    """A tool's input as it came. What Claude Code could not parse is the text inside its wrapping."""
    try:
        return msgspec.json.decode(raw, type=_Unparsed).text
    except msgspec.ValidationError:
        pass
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise Fault(400, f"{where}: a tool's input: {cause}") from cause
    return bytes(raw).decode()


def _system(blocks: list[_Block], where: str) -> str:
    """What changes from call to call without meaning is left out."""
    told = [block if block.type != "text" else _Block("text", _BILLING.sub("", block.text, count=1)) for block in blocks]
    return _text([block for block in told if block.text or block.type != "text"], where)


def _noted(blocks: list[_Block]) -> str:
    """What tools gave. An image is named: a refusal would end the run for what the policy tried once."""
    texts = []
    for block in blocks:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "tool_reference":  # what Claude Code's search for tools finds; from now on they are among the tools
            texts.append(f"The tool {block.tool_name} can be used now.")
        else:
            texts.append(f"[{block.type}: the model reads text only]")
    return "\n".join(texts)


def _blocks(content: str | list[_Block] | None) -> list[_Block]:
    return [_Block("text", content)] if isinstance(content, str) else content or []


def _text(blocks: list[_Block], where: str) -> str:
    for block in blocks:
        if block.type != "text":
            raise Fault(400, f"{where}: blocks of type {block.type!r} are not supported, the model reads text only")
    return "\n".join(block.text for block in blocks)


def _header(headers: Mapping[str, str], name: str) -> str:
    return headers.get(name, "").encode(errors="replace").decode()  # a header may hold any bytes


def _inner(call_id: str) -> str:
    return call_id.removeprefix(_CALL_PREFIX)


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": _CALL_PREFIX + call.id, "name": call.name}


def _event(kind: str, **content: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind, **content}) + b"\n\n"

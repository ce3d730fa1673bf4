"""OpenAI Responses, as Codex and the official client speak it: the whole conversation comes with every request, nothing is stored here."""

from __future__ import annotations

import itertools
import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tidemill_rollout.gateway.conversation import TURN_ID, Answer, Ask, Fault, Message, Tool, ToolCall
from tidemill_rollout.gateway.wires import openai
from tidemill_rollout.gateway.wires.asked import Asked
from tidemill_rollout.gateway.wires.openai import UNREADABLE, error

__all__ = ["Reply", "error", "parse"]

INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""A custom tool takes plain text: to the policy it is a function of one text."""

_ITEM_ID = re.compile(r"[a-z]+_(t[0-9a-f]{20})_[0-9a-f]{8}")
_UNFILLED: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "reasoning": {"summary": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
}
_ENCRYPTED = "reasoning.encrypted_content"
_HOSTED_ITEM = re.compile(r"(web_search|file_search|computer|image_generation|code_interpreter|mcp|tool_search)_\w+|ghost_snapshot")
"""Traces of tools that OpenAI's servers run and of Codex's own bookkeeping. The policy has none of them; they are passed over."""


class _Part(msgspec.Struct):
    type: str = "input_text"
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str = "message"
    role: str = ""
    content: str | list[_Part] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: msgspec.Raw = msgspec.Raw(b'"{}"')  # text; of tools that are passed over, anything
    input: str | None = None
    output: msgspec.Raw = msgspec.Raw(b'""')
    summary: list[_Part] | None = None
    encrypted_content: str | None = None


class _Reasoning(msgspec.Struct):
    effort: Any = None


class _Format(msgspec.Struct):
    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class _Function(msgspec.Struct, tag="function"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Custom(msgspec.Struct, tag="custom"):
    name: str
    description: str | None = None
    format: _Format | None = None


class _Namespace(msgspec.Struct, tag="namespace"):
    name: str
    tools: list[msgspec.Raw]


class _Body(Asked, kw_only=True):
    input: str | list[_Item]
    instructions: str | None = None
    model: str = ""
    tools: list[msgspec.Raw] | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    include: list[str] | None = None
    reasoning: _Reasoning | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None


class _Kind(msgspec.Struct):
    type: str


_decoder = msgspec.json.Decoder(_Body)
_kind_decoder = msgspec.json.Decoder(_Kind)
_tool_decoder = msgspec.json.Decoder(_Function | _Custom | _Namespace)


def parse(raw: bytes, headers: Mapping[str, str]) -> Ask:
    """Raises `Fault`."""
    try:
        body = _decoder.decode(raw)
        tools = tuple(offered for tool in body.tools or () for offered in _tools(tool))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise Fault(400, f"not a responses request: {cause}") from cause
    for field in ("previous_response_id", "conversation", "prompt", "background"):
        if getattr(body, field):
            raise Fault(400, f"{field}: responses are not stored here; send the whole conversation as input, with store false")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise Fault(400, f"max_output_tokens is {body.max_output_tokens}: at least 1 is needed")
    if body.reasoning is not None:
        body.reasoning_effort = body.reasoning.effort
    lead = (Message("system", body.instructions),) if body.instructions else ()
    items = [_Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    said = [message for position, item in enumerate(items) for message in _messages(item, f"input[{position}]")]
    if not items and not lead:
        raise Fault(400, "input: at least one item is needed")
    return Ask(
        wire="responses",
        messages=(*lead, *said),
        tools=tools,
        max_tokens=body.max_output_tokens,
        stream=bool(body.stream),
        model=body.model,
        thinking=_ENCRYPTED in (body.include or ()),
        lead=len(lead),
        asked=body.asked(),
    )


class Reply:
    """One answer on its way to one connection."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._id = f"resp_{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._offered = {tool.name: tool for tool in ask.tools}
        self._sequence = itertools.count()

    def whole(self, answer: Answer) -> bytes:
        return msgspec.json.encode(self._finished(answer, self._items(answer)))

    def opening(self, prompt_tokens: int) -> bytes:
        begun = self._response("in_progress")
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def pulse(self) -> bytes:
        """Codex counts events of any kind, but no comments."""
        return self._event("response.in_progress", response=self._response("in_progress"))

    def closing(self, answer: Answer) -> bytes:
        items = self._items(answer)
        events = [shown for index, item in enumerate(items) for shown in self._shown(index, item)]
        finished = self._finished(answer, items)
        return b"".join([*events, self._event(f"response.{finished['status']}", response=finished)])

    def failure(self, fault: Fault) -> bytes:
        reason = {"code": openai.error_code(fault) or "server_error", "message": fault.message}
        return self._event("response.failed", response={**self._response("failed"), "error": reason})

    def _items(self, answer: Answer) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if answer.reasoning or self._ask.thinking:
            summary = [{"type": "summary_text", "text": answer.reasoning}] if answer.reasoning else []
            items.append({"type": "reasoning", "id": _item_id("rs", answer), "summary": summary, "encrypted_content": answer.turn})
        if answer.text or not answer.calls:
            text = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
            items.append({"type": "message", "id": _item_id("msg", answer), "role": "assistant", "status": "completed", "content": [text]})
        return items + [self._call(call, answer) for call in answer.calls]

    def _call(self, call: ToolCall, answer: Answer) -> dict[str, Any]:
        tool = self._offered.get(call.name, Tool(call.name))
        name = call.name.removeprefix(f"{tool.namespace}.") if tool.namespace else call.name
        named: dict[str, Any] = {"call_id": openai.CALL_PREFIX + call.id, "name": name, "status": "completed"}
        if tool.namespace:
            named["namespace"] = tool.namespace
        if tool.freeform:
            return {"type": "custom_tool_call", "id": _item_id("ctc", answer), **named, "input": _plain_input(call)}
        return {"type": "function_call", "id": _item_id("fc", answer), **named, "arguments": call.arguments}

    def _shown(self, index: int, item: dict[str, Any]) -> Iterator[bytes]:
        """The events that build one item up."""
        where = {"item_id": item["id"], "output_index": index}
        begun = {**item, **_UNFILLED[item["type"]]}
        yield self._event("response.output_item.added", output_index=index, item=begun | ({"status": "in_progress"} if "status" in item else {}))
        if item["type"] == "message":
            part, where = item["content"][0], {**where, "content_index": 0}
            yield self._event("response.content_part.added", **where, part={**part, "text": ""})
            if part["text"]:
                yield self._event("response.output_text.delta", **where, delta=part["text"], logprobs=[])
            yield self._event("response.output_text.done", **where, text=part["text"], logprobs=[])
            yield self._event("response.content_part.done", **where, part=part)
        elif item["type"] == "reasoning":
            for number, part in enumerate(item["summary"]):
                at = {**where, "summary_index": number}
                yield self._event("response.reasoning_summary_part.added", **at, part={**part, "text": ""})
                yield self._event("response.reasoning_summary_text.delta", **at, delta=part["text"])
                yield self._event("response.reasoning_summary_text.done", **at, text=part["text"])
                yield self._event("response.reasoning_summary_part.done", **at, part=part)
        elif item["type"] == "function_call":
            yield self._event("response.function_call_arguments.delta", **where, delta=item["arguments"])
            yield self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"])
        else:
            yield self._event("response.custom_tool_call_input.delta", **where, delta=item["input"])
            yield self._event("response.custom_tool_call_input.done", **where, input=item["input"])
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _finished(self, answer: Answer, items: list[dict[str, Any]]) -> dict[str, Any]:
        cut = answer.finish == "length"
        usage = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answer.sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
        }
        ended = {"output": items, "usage": usage, "incomplete_details": {"reason": "max_output_tokens"} if cut else None}
        return self._response("incomplete" if cut else "completed") | ended

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._ask.model,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": self._ask.max_tokens,
            "metadata": {},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None,
        }

    def _event(self, kind: str, **content: Any) -> bytes:
        return openai.event(msgspec.json.encode({"type": kind, "sequence_number": next(self._sequence), **content}), kind)


def _messages(item: _Item, where: str) -> list[Message]:
    match item.type:
        case "message":
            return [_said(item, where)]
        case "reasoning":
            thought = "\n".join(part.text or "" for part in item.summary or (item.content if isinstance(item.content, list) else None) or ())
            signature = item.encrypted_content if TURN_ID.fullmatch(item.encrypted_content or "") else _turn_of(item)
            return [Message("assistant", reasoning=thought, signature=signature or "", part=True)] if thought or signature else []
        case "function_call" | "custom_tool_call":
            name = f"{item.namespace}.{item.name}" if item.namespace else item.name or ""
            custom = item.type == "custom_tool_call"
            written = json.dumps({"input": item.input or ""}, ensure_ascii=False) if custom else _text(item.arguments, f"{where}.arguments")
            call = ToolCall(openai.inner(_needed(item.call_id, f"{where}.call_id")), _needed(name, f"{where}.name"), written)
            return [Message("assistant", calls=(call,), part=True)]
        case "function_call_output" | "custom_tool_call_output":
            return [Message("tool", _text(item.output, f"{where}.output"), call_id=openai.inner(_needed(item.call_id, f"{where}.call_id")))]
    if _HOSTED_ITEM.fullmatch(item.type):
        return []
    raise Fault(400, f"{where}: items of type {item.type!r} are not supported; there are messages, reasoning, function and custom tool calls")


def _said(item: _Item, where: str) -> Message:
    role = openai.ROLES.get(item.role)
    if role is None or role == "tool":
        raise Fault(400, f"{where}.role: {item.role!r} is not known; use system, developer, user or assistant")
    parts = [_Part(text=item.content)] if isinstance(item.content, str) else item.content or ()
    for part in parts:
        if part.type not in openai.TEXT_PARTS:
            raise Fault(400, f"{where}.content: parts of type {part.type!r} are not supported, the model reads text only")
    text = "\n".join(part.text or part.refusal or "" for part in parts)
    return Message("assistant", text, signature=_turn_of(item), part=True) if role == "assistant" else Message(role, text)


def _text(raw: msgspec.Raw, where: str) -> str:
    """Of a tool's arguments or result: text, parts, or whatever its program made of it."""
    try:
        read = msgspec.json.decode(raw, type=str | list[_Part])
    except msgspec.ValidationError:
        return bytes(raw).decode(errors="replace")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise Fault(400, f"{where}: {cause}") from cause
    return read if isinstance(read, str) else "\n".join(UNREADABLE.format(part.type) if part.text is None else part.text for part in read)


def _tools(raw: msgspec.Raw, namespace: str = "") -> Iterator[Tool]:
    """Functions and custom tools, also those in namespaces. Codex always lists tools that only OpenAI's servers could run: they are not offered."""
    if _kind_decoder.decode(raw).type not in ("function", "custom", "namespace"):
        return
    tool = _tool_decoder.decode(raw)
    name = f"{namespace}.{tool.name}" if namespace else tool.name
    match tool:
        case _Function():
            yield Tool(name, tool.description or "", tool.parameters or {}, namespace)
        case _Custom():
            described = tool.description or ""
            if tool.format is not None and tool.format.definition:
                described = f"{described}\n\nThe input follows this {tool.format.syntax or ''} grammar:\n{tool.format.definition}".strip()
            yield Tool(name, described, INPUT, namespace, freeform=True)
        case _Namespace():
            for inner in tool.tools:
                yield from _tools(inner, name)


def _plain_input(call: ToolCall) -> str:
    """Of a custom tool. What is not the one argument it takes is shown as it was written."""
    arguments = call.parsed_arguments
    given = arguments.get("input") if isinstance(arguments, dict) else None
    return given if isinstance(given, str) else call.arguments


def _needed(value: str | None, where: str) -> str:
    if not value:
        raise Fault(400, f"{where} is missing")
    return value


def _item_id(prefix: str, answer: Answer) -> str:
    """Fresh for each response, with the turn in it: some harnesses bring back ids but no encrypted content."""
    return f"{prefix}_{answer.turn}_{secrets.token_hex(4)}"


def _turn_of(item: _Item) -> str:
    found = _ITEM_ID.fullmatch(item.id or "")
    return found[1] if found else ""

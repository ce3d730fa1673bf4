"""OpenAI Chat Completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill_rollout.gateway.conversation import Answer, Ask, Fault, Message, Tool, ToolCall
from tidemill_rollout.gateway.wires import openai
from tidemill_rollout.gateway.wires.asked import Asked
from tidemill_rollout.gateway.wires.openai import error

__all__ = ["Reply", "error", "parse"]

_FINISH = {"stop": "stop", "length": "length", "calls": "tool_calls", "stop-text": "stop"}


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Call(msgspec.Struct):
    id: str
    function: _Function
    type: str | None = "function"


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, as some clients call it


class _Tool(msgspec.Struct):
    type: str
    function: _Function | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(Asked, kw_only=True):
    messages: list[_Message]
    model: str = ""
    tools: list[_Tool] | None = None
    functions: list[Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


_decoder = msgspec.json.Decoder(_Body)


def parse(raw: bytes, headers: Mapping[str, str]) -> Ask:
    """Raises `Fault`."""
    try:
        body = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise Fault(400, f"not a chat completions request: {cause}") from cause
    if body.n not in (None, 1):
        raise Fault(400, f"n is {body.n}: one answer a call, send the request again for another")
    if body.top_logprobs:
        raise Fault(400, "top_logprobs: only the tokens that were sampled have a log-probability here; leave it out, logprobs alone is served")
    if body.functions:
        raise Fault(400, "functions: use tools")
    if not body.messages:
        raise Fault(400, "messages: at least one is needed")
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if max_tokens is not None and max_tokens < 1:
        raise Fault(400, f"max_tokens is {max_tokens}: at least 1 is needed")
    return Ask(
        wire="chat",
        messages=tuple(_message(message, f"messages[{position}]") for position, message in enumerate(body.messages)),
        tools=tuple(_tool(tool, f"tools[{position}]") for position, tool in enumerate(body.tools or ())),
        max_tokens=max_tokens,
        stop=tuple(filter(None, [body.stop] if isinstance(body.stop, str) else body.stop or ())),
        stream=bool(body.stream),
        model=body.model,
        usage=bool(body.stream_options and body.stream_options.include_usage),
        logprobs=bool(body.logprobs),
        asked=body.asked(),
    )


class Reply:
    """One answer on its way to one connection."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())

    def whole(self, answer: Answer) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else ""), "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_shown(call) for call in answer.calls]
        choice = {"index": 0, "message": message, "finish_reason": _FINISH[answer.finish], "logprobs": _logprobs(answer)}
        return self._frame("chat.completion", choices=[choice], usage=_usage(answer))

    def opening(self, prompt_tokens: int) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def pulse(self) -> bytes:
        return self._chunk({})

    def closing(self, answer: Answer) -> bytes:
        chunks = []
        if answer.reasoning:
            chunks.append(self._chunk({"reasoning_content": answer.reasoning}))
        if answer.text:
            chunks.append(self._chunk({"content": answer.text}))
        if answer.calls:
            chunks.append(self._chunk({"tool_calls": [{"index": index, **_shown(call)} for index, call in enumerate(answer.calls)]}))
        chunks.append(self._chunk({}, _FINISH[answer.finish], _logprobs(answer)))
        if self._ask.usage:
            chunks.append(openai.event(self._frame("chat.completion.chunk", choices=[], usage=_usage(answer))))
        return b"".join([*chunks, b"data: [DONE]\n\n"])

    def failure(self, fault: Fault) -> bytes:
        return openai.event(error(fault))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, logprobs: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return openai.event(self._frame("chat.completion.chunk", choices=[choice]))

    def _frame(self, kind: str, **content: Any) -> bytes:
        return msgspec.json.encode({"id": self._id, "object": kind, "created": self._created, "model": self._ask.model, **content})


def _message(message: _Message, where: str) -> Message:
    role = openai.ROLES.get(message.role)
    if role is None:
        raise Fault(400, f"{where}.role: {message.role!r} is not known; use {', '.join(openai.ROLES)}")
    if role == "tool" and not message.tool_call_id:
        raise Fault(400, f"{where}.tool_call_id: a tool's result must say which call it answers")
    parts = [_Part(text=message.content)] if isinstance(message.content, str) else message.content or ()
    text = "\n".join(_text(part, where, in_result=role == "tool") for part in parts)
    calls = tuple(ToolCall(openai.inner(call.id), call.function.name, call.function.arguments or "{}") for call in message.tool_calls or ())
    return Message(role, text, message.reasoning_content or message.reasoning or "", calls, openai.inner(message.tool_call_id or ""))


def _text(part: _Part, where: str, *, in_result: bool) -> str:
    if part.type in openai.TEXT_PARTS:
        return part.text or part.refusal or ""
    if in_result:
        return openai.UNREADABLE.format(part.type)
    raise Fault(400, f"{where}.content: parts of type {part.type!r} are not supported, the model reads text only")


def _tool(tool: _Tool, where: str) -> Tool:
    if tool.type != "function":
        raise Fault(400, f"{where}: type {tool.type!r} is not supported, use function")
    if tool.function is None:
        raise Fault(400, f"{where}.function is missing; it says the tool's name, and may say its description and parameters")
    return Tool(tool.function.name, tool.function.description or "", tool.function.parameters or {})


def _shown(call: ToolCall) -> dict[str, Any]:
    return {"id": openai.CALL_PREFIX + call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(answer: Answer) -> dict[str, int]:
    total = answer.prompt_tokens + answer.sampled_tokens
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.sampled_tokens, "total_tokens": total}


def _logprobs(answer: Answer) -> dict[str, Any] | None:
    """Of all sampled tokens: also those of a thought or a call, and the end marker. Which other tokens were likely nobody here knows."""
    if not answer.shown:
        return None
    shown = [{"token": t.text.decode(errors="replace"), "logprob": t.logprob, "bytes": list(t.text), "top_logprobs": []} for t in answer.shown]
    return {"content": shown, "refusal": None}

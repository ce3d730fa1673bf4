"""How tools are told to the policy and how its calls are read from what it sampled.

`Native`: the chat template shows the tools, calls are `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
`Text`: for templates that know no tools. The system message describes them; a call is a fenced block

    ```tool bash
    {"command": "ls -l"}
    ```

whose body is one JSON object, or plain text where the tool has exactly one parameter and that is a string. Several blocks are
several calls. The results come back in a user message, each under the line `Result of bash:`.

What can not be read as a call stays text.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tidemill_rollout.gateway.conversation import Message, Tool, ToolCall

_FENCE = re.compile(r"^```tool[ \t]+([\w.-]{1,64})[ \t]*\n", re.MULTILINE)
_FENCE_END = re.compile(r"^```[ \t]*$", re.MULTILINE)
_TAG, _TAG_END = re.compile("<tool_call>"), re.compile("</tool_call>")
_ENDS_TRIED = 4
"""Of a tagged call: its arguments may hold the end tag as text."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Sampled text, taken apart."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # name, arguments
    stop_text: str = ""  # the stop string that ended it


class _TaggedCall(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def read_reasoning(text: str, opened: bool) -> tuple[str, str]:
    """Reasoning and the rest. `opened`: the prompt already ended with `<think>`."""
    started = opened or text.lstrip().startswith("<think>")
    if not started:
        return "", text
    reasoning, closed, rest = text.lstrip().removeprefix("<think>").partition("</think>")
    return (reasoning.strip(), rest.lstrip("\n")) if closed else (reasoning.strip(), "")


def read_tagged(text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Text and calls of `Native`."""
    return _take(text, _TAG, _TAG_END, _ENDS_TRIED, lambda begin, body: _tagged(body))


def read_fenced(text: str, tools: tuple[Tool, ...]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Text and calls of `Text`."""
    plain = {tool.name: only for tool in tools if (only := _only_text_parameter(tool))}
    return _take(text, _FENCE, _FENCE_END, 1, lambda begin, body: _fenced(begin[1], body.removesuffix("\n"), plain))


def before_stop(text: str, stop: tuple[str, ...]) -> tuple[str, str]:
    """Text before the first stop string, and that string. The tokens stay as sampled."""
    found = [(position, string) for string in stop if string and (position := text.find(string)) >= 0]
    if not found:
        return text, ""
    position, string = min(found)
    return text[:position], string


def as_text(messages: tuple[Message, ...], names: dict[str, str]) -> list[Message]:
    """The same conversation without tools: calls are part of the answer's text, results are user messages. `names`: tool by call id."""
    plain: list[Message] = []
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            results.append(f"Result of {names.get(message.call_id, 'the tool')}:\n{message.text}")
            continue
        if results:
            plain.append(Message("user", "\n\n".join(results)))
            results = []
        if message.calls:
            blocks = [message.text] if message.text else []
            message = Message(message.role, "\n".join(blocks + [_block(call) for call in message.calls]), message.reasoning)
        plain.append(message)
    return [*plain, Message("user", "\n\n".join(results))] if results else plain


def describe(tools: tuple[Tool, ...]) -> str:
    """What the system message says about the tools in `Text`."""
    lines = ["You can use these tools:"]
    for tool in tools:
        lines += ["", f"{tool.name}: {tool.description}".strip(), f"Arguments (JSON Schema): {json.dumps(tool.parameters)}"]
    example = _fence(tools[0].name, json.dumps(dict.fromkeys(_properties(tools[0]), "...")))
    lines += ["", "To use a tool, write a block like this one and stop. Its result comes in the next message.", example]
    return "\n".join(lines)


def as_object(text: str) -> dict[str, Any] | None:
    """The JSON object that this text is, or None."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None


def _take(
    text: str, begins: re.Pattern[str], ends: re.Pattern[str], tried: int, call: Callable[[re.Match[str], str], tuple[str, str] | None]
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Cut out of `text` whatever stands between a beginning and an end and `call` can read. Linear: a policy may stutter for a whole answer."""
    kept: list[str] = []
    calls: list[tuple[str, str]] = []
    at = 0
    while (begin := begins.search(text, at)) and (found := list(itertools.islice(ends.finditer(text, begin.end()), tried))):
        end, read = found[0], None
        for possible in found:
            if (read := call(begin, text[begin.end() : possible.start()])) is not None:
                end = possible
                calls.append(read)
                break
        kept.append(text[at : end.end()] if read is None else text[at : begin.start()])
        at = end.end()
    return ("".join([*kept, text[at:]]).strip(), tuple(calls)) if calls else (text, ())


def _tagged(body: str) -> tuple[str, str] | None:
    try:
        call = msgspec.json.decode(body, type=_TaggedCall)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
    arguments = bytes(call.arguments).decode()
    return (call.name, arguments) if call.name and _is_object(arguments) else None


def _fenced(name: str, body: str, plain: dict[str, str]) -> tuple[str, str] | None:
    if _is_object(body):
        return name, body.strip()
    if name in plain and body.strip():
        return name, json.dumps({plain[name]: body}, ensure_ascii=False)
    return None


def _is_object(text: str) -> bool:
    return as_object(text) is not None


def _properties(tool: Tool) -> dict[str, Any]:
    properties = tool.parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


def _only_text_parameter(tool: Tool) -> str:
    properties = _properties(tool)
    if len(properties) != 1:
        return ""
    name, schema = next(iter(properties.items()))
    return name if isinstance(schema, dict) and schema.get("type") == "string" else ""


def _block(call: ToolCall) -> str:
    return _fence(call.name, call.arguments)


def _fence(name: str, body: str) -> str:
    return f"```tool {name}\n{body}\n```"

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

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from tidemill_rollout.gateway.conversation import Message, Tool, ToolCall

_FENCED = re.compile(r"^```tool[ \t]+([\w.-]{1,64})[ \t]*\n(.*?)\n?^```[ \t]*$", re.MULTILINE | re.DOTALL)
_TAGGED = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reading:
    """Sampled text, taken apart."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # name, arguments


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
    return _take(_TAGGED, text, lambda found: _tagged(found[1]))


def read_fenced(text: str, tools: tuple[Tool, ...]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Text and calls of `Text`."""
    plain = {tool.name: only for tool in tools if (only := _only_text_parameter(tool))}
    return _take(_FENCED, text, lambda found: _fenced(found[1], found[2], plain))


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


def _take(pattern: re.Pattern[str], text: str, call: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Cut out of `text` whatever `pattern` finds and `call` can read."""
    calls: list[tuple[str, str]] = []

    def cut(found: re.Match[str]) -> str:
        read = call(found)
        if read is None:
            return found[0]
        calls.append(read)
        return ""

    rest = pattern.sub(cut, text)
    return (rest.strip(), tuple(calls)) if calls else (text, ())


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
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return False
    return True


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

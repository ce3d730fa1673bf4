"""Claude Code's side of the Messages wire: what it sends, what it makes of an answer, and what it does to its history."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

from tests.rollout.gateway.corpus.desk import Desk
from tests.rollout.gateway.corpus.tools import as_messages

Block = dict[str, Any]
MARKER = {"cache_control": {"type": "ephemeral"}}


@dataclass
class Claude:
    """One agent of one run."""

    desk: Desk
    system: list[str] = field(default_factory=lambda: ["You are an agent."])
    tools: tuple[str, ...] = ("bash",)
    agent: str = ""
    parent: str = ""
    thinking: bool = True
    model: str = "policy"
    messages: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)  # of the answers
    sent: set[int] = field(default_factory=set)  # system messages that were sent before: they are plain strings from then on

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def note(self, text: str) -> None:
        """A system message among the others."""
        self.messages.append({"role": "system", "content": [{"type": "text", "text": text}]})

    def results(self, *given: tuple[Block, str | list[Block]], text: str = "") -> None:
        """Of tools, in the order in which they came; then what the user says in the same message."""
        blocks: list[Block] = [{"type": "tool_result", "tool_use_id": call["id"], "content": content} for call, content in given]
        self.messages.append({"role": "user", "content": [*blocks, *([{"type": "text", "text": text}] if text else [])]})

    async def ask(self, answer: str, to: str = "", **fields: Any) -> list[Block]:
        """One call; its answer goes into the history as Claude Code keeps it. Returns its blocks."""
        self.desk.will_say(answer, to)
        return self.keep(await self.send(**fields))

    async def send(self, **fields: Any) -> list[Block]:
        """The same body again is a retry."""
        raw = await self.desk.post("v1/messages?beta=true", self.body() | fields, self.headers())
        message = _streamed(raw) if fields.get("stream", True) else json.loads(raw)
        self.ids.append(message["id"])
        return list(message["content"])

    def keep(self, blocks: list[Block]) -> list[Block]:
        self.messages.append({"role": "assistant", "content": copy.deepcopy(blocks)})
        return self.messages[-1]["content"]

    def headers(self) -> dict[str, str]:
        named = {"x-claude-code-agent-id": self.agent, "x-claude-code-parent-agent-id": self.parent}
        return {"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking", "x-stainless-retry-count": "0", **_filled(named)}

    def body(self) -> dict[str, Any]:
        messages = copy.deepcopy(self.messages)
        for position, message in enumerate(messages):
            if message["role"] == "system" and position in self.sent:
                message["content"] = message["content"][0]["text"]
            elif message["role"] == "system":
                self.sent.add(position)
                message["content"][-1] |= MARKER
        if isinstance(messages[-1]["content"], list) and messages[-1]["role"] == "user":
            messages[-1]["content"][-1] |= MARKER
        return {
            "model": self.model,
            "max_tokens": 400,
            "messages": messages,
            "system": [{"type": "text", "text": text} | MARKER for text in self.system],
            "tools": [as_messages(name) for name in self.tools],
            "metadata": {"user_id": "somebody"},
            "thinking": {"type": "adaptive"} if self.thinking else {"type": "disabled"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "stream": True,
        }


def calls(blocks: list[Block]) -> list[Block]:
    return [block for block in blocks if block["type"] == "tool_use"]


def _filled(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if value}


def _streamed(raw: bytes) -> dict[str, Any]:
    """Without `event:` lines Claude Code takes a stream for failed."""
    message: dict[str, Any] = {}
    for event in raw.decode().split("\n\n"):
        kind, _, data = event.partition("\ndata: ")
        assert kind.startswith("event: ") or not event, event
        if not event:
            continue
        told = json.loads(data)
        assert told["type"] == kind.removeprefix("event: ")
        match told["type"]:
            case "message_start":
                message = told["message"]
            case "content_block_start":
                message["content"].append(told["content_block"] | ({"input": ""} if told["content_block"]["type"] == "tool_use" else {}))
            case "content_block_delta":
                delta, block = told["delta"], message["content"][told["index"]]
                name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(delta["type"])
                block[name or "input"] += delta[name or "partial_json"]
            case "content_block_stop":
                block = message["content"][told["index"]]
                if block["type"] == "tool_use":
                    block["input"] = json.loads(block["input"])
            case "message_delta":
                message |= told["delta"]
    return message

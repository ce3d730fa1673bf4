"""The agents on OpenAI's wires: mini-swe-agent, qwen-code and opencode on Chat Completions, Codex on Responses."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

from tests.rollout.gateway.corpus.desk import Desk
from tests.rollout.gateway.corpus.tools import as_chat, as_responses

Dict = dict[str, Any]


@dataclass
class Chat:
    """`streams`: qwen-code and opencode; `rewrites`: they write tool arguments anew. mini-swe-agent does neither."""

    desk: Desk
    system: str = "You are an agent."
    tools: tuple[str, ...] = ("bash",)
    streams: bool = False
    rewrites: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    messages: list[Dict] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.system:
            self.messages.append({"role": "system", "content": self.system})

    def user(self, content: str | list[Dict]) -> None:
        self.messages.append({"role": "user", "content": content})

    def results(self, *given: tuple[Dict, str | list[Dict]]) -> None:
        self.messages += [{"role": "tool", "tool_call_id": call["id"], "content": content} for call, content in given]

    async def ask(self, answer: str, to: str = "", **fields: Any) -> Dict:
        self.desk.will_say(answer, to)
        return self.keep(await self.send(**fields))

    async def send(self, **fields: Any) -> Dict:
        body: Dict = {"model": "policy", "messages": self.messages, "stream": self.streams, **fields}
        if self.tools:
            body = {"tools": [as_chat(name) for name in self.tools], **body}
        raw = await self.desk.post("v1/chat/completions", body, self.headers)
        return _streamed(raw) if body["stream"] else dict(json.loads(raw)["choices"][0]["message"])

    def keep(self, answer: Dict) -> Dict:
        kept = copy.deepcopy(answer)
        for call in kept.get("tool_calls") or () if self.rewrites else ():
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
        self.messages.append(kept)
        return kept


@dataclass
class Codex:
    """Items instead of messages; all of an answer's come back, verbatim."""

    desk: Desk
    instructions: str = "You are an agent."
    tools: tuple[str, ...] = ("bash",)
    parent: str = ""
    thread: str = "thread-0"
    windows: int = 0  # grows at each compaction
    input: list[Dict] = field(default_factory=list)

    def user(self, text: str, role: str = "user") -> None:
        self.input.append({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]})

    def results(self, *given: tuple[Dict, str]) -> None:
        for call, output in given:
            kind = "custom_tool_call_output" if call["type"] == "custom_tool_call" else "function_call_output"
            self.input.append({"type": kind, "call_id": call["call_id"], "output": output})

    async def ask(self, answer: str, to: str = "", **fields: Any) -> list[Dict]:
        self.desk.will_say(answer, to)
        return self.keep(await self.send(**fields))

    async def send(self, **fields: Any) -> list[Dict]:
        body: Dict = {
            "model": "policy",
            "instructions": self.instructions,
            "input": self.input,
            "tools": [as_responses(name) for name in self.tools],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": self.thread,
        }
        window = f"{self.thread}:{self.windows}"
        headers = {"session-id": "session-0", "thread-id": self.thread, "x-codex-window-id": window}
        if self.parent:
            headers["x-codex-parent-thread-id"] = self.parent
        raw = await self.desk.post("v1/responses", body | fields, headers)
        if not (body | fields)["stream"]:
            return list(json.loads(raw)["output"])
        events = [json.loads(line.removeprefix("data: ")) for line in raw.decode().splitlines() if line.startswith("data: ")]
        return [event["item"] for event in events if event["type"] == "response.output_item.done"]

    def keep(self, items: list[Dict]) -> list[Dict]:
        self.input += copy.deepcopy(items)
        return items


def calls(answer: Dict | list[Dict]) -> list[Dict]:
    if isinstance(answer, list):
        return [item for item in answer if item["type"] in ("function_call", "custom_tool_call")]
    return list(answer["tool_calls"])


def _streamed(raw: bytes) -> Dict:
    whole: Dict = {"role": "assistant", "content": "", "tool_calls": []}
    for line in raw.decode().splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            delta = choice["delta"]
            whole["content"] += delta.get("content") or ""
            whole["tool_calls"] += [{key: call[key] for key in ("id", "type", "function")} for call in delta.get("tool_calls") or []]
            if delta.get("reasoning_content"):
                whole["reasoning_content"] = whole.get("reasoning_content", "") + delta["reasoning_content"]
    return {name: value for name, value in whole.items() if value or name == "content"}

"""From conversations to tokens and back, never tokenising again what was sampled.

A request that continues a known turn keeps that turn's tokens, prompt and answer, exactly as they were. Only what stands between
that answer and the next one is rendered: the `bridge`. It is cut out of a small rendered dialogue, so its cost is that of the new
messages. Where a template does not let itself be cut (it writes an answer differently once something follows), there is no bridge:
the request is rendered whole, as a new root with the history as given context.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer

from tidemill.api.rljob import Tools
from tidemill.telemetry.logs import Log
from tidemill_rollout.gateway.conversation import Fault, Message, Tool, ToolCall
from tidemill_rollout.gateway.template import BrokenModelFolder, ChatTemplate, read_configuration, refused
from tidemill_rollout.gateway.tools import Reading, as_text, describe, read_fenced, read_reasoning, read_tagged

_ANCHOR = "@@ anchor 5f3759df @@"
"""Stands for the sampled answer in the dialogue from which a bridge is cut."""

_THOUGHT = "<think>\nhm\n</think>\n\n"

_GUARDED = re.compile("\ue000(\\d+)\ue001")
"""Stands for text of a message that looks like a special token: a file that holds "<|im_end|>" ends nobody's turn."""

log = Log(__name__)


class Renderer:
    """Tokenizer and chat template of one model folder."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self._native = tools is Tools.NATIVE
        self._template = ChatTemplate(folder)
        self._tokenizer = _tokenizer(folder)
        self._literal = _tokenizer(folder)  # to it, special tokens are text like any other
        self._literal.encode_special_tokens = True
        self._special = [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]
        self._looks_special = re.compile("|".join(map(re.escape, self._special)) or "(?!)")
        self._mid_system = self._shows([_user("a"), _assistant("b"), _system(_ANCHOR), _user("c")])
        self._any_system = self._shows([_system(_ANCHOR), _user("a")])
        self._repeats = self._shows([_user("a"), _user(_ANCHOR)])
        self._shows_tools = self._shows([_user("a")], [_offered(Tool(_ANCHOR))])
        try:
            asked = self._template.render([_user("a")], None, answer_next=True)
            answered = self._template.render([_user("a"), _assistant(_ANCHOR)], None, answer_next=False)
            earlier = self._template.render([_user("a"), _assistant(_THOUGHT + _ANCHOR), _user("b")], None, answer_next=True)
        except TemplateError as cause:
            raise BrokenModelFolder(f"model folder {folder}: its chat template fails on a plain dialogue: {cause}") from cause
        self._tail = answered.partition(_ANCHOR)[2]
        """What the template writes after an answer, e.g. "<|im_end|>\\n"."""
        self._opens_reasoning = asked.rstrip().endswith("<think>")
        self._end = self._end_marker()
        self.end_ids = frozenset(end for end in (self._end, *self._configured_ends(folder)) if end is not None)
        """Tokens that end an answer when sampled."""
        self.keeps_prefix = earlier.startswith(asked + _THOUGHT + _ANCHOR + self._tail)
        """Whether the template shows earlier turns as they were sampled; many forget thoughts. If not, exact tokens differ from it, knowingly."""
        if not self.keeps_prefix:
            log.warning("the chat template rewrites earlier turns; known turns keep their sampled tokens", folder=str(folder))

    def prompt(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> list[int]:
        """The whole conversation, for a request that continues no known turn. Raises `Fault`."""
        shown = list(messages)
        if self._native and tools and not self._shows_tools:
            raise Fault(400, "tools: the model's chat template knows no tools; set spec.model.tools of the job to Text")
        if not self._native:
            shown = as_text(tuple(messages), _names(messages))
            if tools:
                shown = _with_system_text(shown, describe(tools))
        try:
            text = self._template.render(self._fit(shown), self._offered(tools), answer_next=True)
        except TemplateError as cause:
            raise refused(cause) from cause
        return self._encode(text)

    def bridge(self, answered: Message, last_token: int | None, new: Sequence[Message], tools: tuple[Tool, ...]) -> list[int] | None:
        """Tokens between the last one sampled for `answered` and the next answer. None: the template has no such place."""
        names = _names([answered, *new])
        if self._native:
            dialogue = [Message("user", "a"), Message("assistant", _ANCHOR, calls=answered.calls)]
            shown = list(new)
        else:
            dialogue = [Message("user", "a"), Message("assistant", _ANCHOR)]
            shown = as_text(tuple(new), names)
        try:
            before = self._template.render(self._fit(dialogue), self._offered(tools), answer_next=False)
            after = self._template.render(self._fit([*dialogue, *shown], names), self._offered(tools), answer_next=True)
        except TemplateError:
            return None
        before, after = before.partition(_ANCHOR)[2], after.partition(_ANCHOR)[2]
        if not before.endswith(self._tail) or not after.startswith(before):
            return None
        ids = self._encode(self._tail + after[len(before) :])
        # The end marker was sampled: it must not stand there twice. Cut short by its length an answer has none: it is given then.
        return ids[1:] if last_token in self.end_ids and ids[:1] == [self._end] else ids

    def text(self, sampled: Sequence[int]) -> str:
        return self._tokenizer.decode(list(sampled), skip_special_tokens=True)

    def read(self, text: str, tools: tuple[Tool, ...]) -> Reading:
        """What the policy said, thought and called."""
        reasoning, text = read_reasoning(text, self._opens_reasoning)
        if not tools:
            return Reading(text, reasoning)
        text, calls = read_tagged(text) if self._native else read_fenced(text, tools)
        return Reading(text, reasoning, calls)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for number, part in enumerate(_GUARDED.split(text)):
            if number % 2:  # what a guard stands for
                ids += self._literal.encode(self._special[int(part) % len(self._special)], add_special_tokens=False).ids
            elif part:
                ids += self._tokenizer.encode(part, add_special_tokens=False).ids
        return ids

    def _guard(self, text: str) -> str:
        return self._looks_special.sub(lambda found: f"\ue000{self._special.index(found[0])}\ue001", text)

    def _end_marker(self) -> int | None:
        """The special token with which the template ends an answer, or None."""
        first = self._encode(self._tail)[:1]
        special = self._tokenizer.get_added_tokens_decoder()
        return first[0] if first and first[0] in special and special[first[0]].special else None

    def _configured_ends(self, folder: Path) -> set[int | None]:
        configured = read_configuration(folder / "generation_config.json").get("eos_token_id")
        ids = configured if isinstance(configured, list) else [configured]
        return {*ids, self._tokenizer.token_to_id(self._template.special("eos_token"))}

    def _offered(self, tools: tuple[Tool, ...]) -> list[dict[str, Any]] | None:
        if not self._native or not tools:
            return None
        return [_offered(tool) for tool in tools]

    def _fit(self, messages: Sequence[Message], names: dict[str, str] | None = None) -> list[dict[str, Any]]:
        """As the template takes them: where it refuses or forgets a system message, or refuses two user messages in a row, users say it all."""
        names = _names(messages) if names is None else names
        fitted: list[dict[str, Any]] = []
        for position, message in enumerate(messages):
            shown = _shown(message, self._guard(message.text), names)
            if message.role == "system" and not (self._any_system if position == 0 else self._mid_system):
                shown["role"] = "user"
            if not self._repeats and fitted and shown["role"] == fitted[-1]["role"] == "user":
                fitted[-1]["content"] += "\n\n" + shown["content"]
            else:
                fitted.append(shown)
        return fitted

    def _shows(self, dialogue: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> bool:
        try:
            return _ANCHOR in self._template.render(dialogue, tools, answer_next=True)
        except TemplateError:
            return False


def _tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as cause:  # the library raises nothing narrower
        raise BrokenModelFolder(f"model folder {folder}: cannot read {path.name}: {cause}") from cause
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _names(messages: Sequence[Message]) -> dict[str, str]:
    """Tool names by call id."""
    return {call.id: call.name for message in messages for call in message.calls}


def _with_system_text(messages: list[Message], text: str) -> list[Message]:
    if messages and messages[0].role == "system":
        return [Message("system", messages[0].text + "\n\n" + text), *messages[1:]]
    return [Message("system", text), *messages]


def _offered(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters}}


def _shown(message: Message, text: str, names: dict[str, str]) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": text}
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if message.calls:
        shown["tool_calls"] = [_shown_call(call) for call in message.calls]
    if message.role == "tool":
        shown |= {"tool_call_id": message.call_id, "name": names.get(message.call_id, "")}
    return shown


def _shown_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.parsed_arguments}}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}

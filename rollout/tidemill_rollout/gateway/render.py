"""From conversations to tokens and back, never tokenising again what was sampled.

A request that continues a known turn keeps that turn's tokens, prompt and answer, exactly as they were. Only what stands between
that answer and the next one is rendered: the `bridge`. It is cut out of a small dialogue that the model's own template renders, so its
cost is that of the new messages. Where a template does not let itself be cut (it writes an answer differently once something follows),
or writes calls in a form of its own, the package `renderers` is asked whether it knows the model's family (`family.py`). Where it does
not either, there is no bridge: the request is rendered whole, as a new root with the history as given context.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from tidemill.api.rljob import Tools
from tidemill.telemetry.logs import Log
from tidemill_rollout.gateway.conversation import Fault, Message, ShownToken, Tool, ToolCall
from tidemill_rollout.gateway.family import Family, recognised
from tidemill_rollout.gateway.template import BrokenModelFolder, ChatTemplate, read_configuration, refused
from tidemill_rollout.gateway.tokens import Tokens
from tidemill_rollout.gateway.tools import Reading, as_text, before_stop, describe, read_fenced, read_reasoning, read_tagged

_ANCHOR = "@@ anchor 5f3759df @@"
"""Stands for the sampled answer in the dialogue from which a bridge is cut."""

_THOUGHT = "<think>\nhm\n</think>\n\n"

log = Log(__name__)


class Renderer:
    """Tokenizer, chat template and family of one model folder."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self._native = tools is Tools.NATIVE
        self._template = ChatTemplate(folder)
        self._tokens = Tokens(folder)
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
        self._tagged = self._tags_calls()
        self._family: Family | None = None
        lacks = self._lacks()
        if lacks:
            self._family = recognised(self._tokens, self._rendered, self.end_ids)
        self._reads_calls = self._tagged or self._family is not None
        self._report(folder, lacks)

    @property
    def family(self) -> str:
        """Of the package `renderers`, "" where the template alone does."""
        return self._family.name if self._family is not None else ""

    def prompt(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> list[int]:
        """The whole conversation, for a request that continues no known turn. Raises `Fault`."""
        shown = list(messages)
        if tools and self._native and not self._shows_tools:
            raise Fault(400, "tools: the model's chat template knows no tools; set spec.model.tools of the job to Text")
        if tools and self._native and not self._reads_calls:
            raise Fault(400, "tools: calls in the form of the model's chat template can not be read; set spec.model.tools of the job to Text")
        if not self._native:
            shown = as_text(tuple(messages), _names(messages))
            if tools:
                shown = _with_system_text(shown, describe(tools))
        try:
            text = self._template.render(self._fit(shown), self._offered(tools), answer_next=True)
        except TemplateError as cause:
            raise refused(cause) from cause
        return self._tokens.encode(text)

    def bridge(self, answered: Message, last_token: int | None, new: Sequence[Message], tools: tuple[Tool, ...]) -> list[int] | None:
        """Tokens between the last one sampled for `answered` and the next answer. None: there is no such place."""
        if self._family is not None:
            names = _names([answered, *new])
            shown = list(new) if self._native else as_text(tuple(new), names)
            known = self._family.bridge(last_token, self._fit(shown, names, first=False), self._offered(tools))
            if known is not None:
                return known
        return self._cut(answered, last_token, new, tools)

    def _cut(self, answered: Message, last_token: int | None, new: Sequence[Message], tools: tuple[Tool, ...]) -> list[int] | None:
        """The bridge as the template has it."""
        names = _names([answered, *new])
        shown = list(new) if self._native else as_text(tuple(new), names)
        dialogue = [Message("user", "a"), Message("assistant", _ANCHOR, calls=answered.calls if self._native else ())]
        try:
            before = self._template.render(self._fit(dialogue), self._offered(tools), answer_next=False)
            after = self._template.render(self._fit([*dialogue, *shown], names), self._offered(tools), answer_next=True)
        except TemplateError:
            return None
        before, after = before.partition(_ANCHOR)[2], after.partition(_ANCHOR)[2]
        if not before.endswith(self._tail) or not after.startswith(before):
            return None
        ids = self._tokens.encode(self._tail + after[len(before) :])
        # The end marker was sampled: it must not stand there twice. Cut short by its length an answer has none: it is given then.
        return ids[1:] if last_token in self.end_ids and ids[:1] == [last_token] else ids

    def text(self, sampled: Sequence[int]) -> str:
        return self._tokens.decode(sampled)

    def shown(self, sampled: Sequence[int], logprobs: Sequence[float]) -> tuple[ShownToken, ...]:
        """The tokens of an answer one by one, for a harness that wants to see them."""
        return tuple(ShownToken(self._tokens.bytes_of(token), logprob) for token, logprob in zip(sampled, logprobs, strict=True))

    def read(self, sampled: Sequence[int], tools: tuple[Tool, ...], stop: tuple[str, ...] = ()) -> Reading:
        """What the policy said, thought and called. A stop string and what follows it are left out."""
        text, stop_text = before_stop(self._tokens.decode(sampled), stop)
        if tools and self._native and self._family is not None and not self._tagged:
            read = self._family.read(sampled, self._offered(tools), self._tokens.decode)
            return Reading(before_stop(read.text, stop)[0], read.reasoning, read.calls, stop_text)
        reasoning, text = read_reasoning(text, self._opens_reasoning)
        calls: tuple[tuple[str, str], ...] = ()
        if tools:
            text, calls = read_tagged(text) if self._native else read_fenced(text, tools)
        return Reading(text, reasoning, calls, stop_text)

    def _report(self, folder: Path, lacks: str) -> None:
        """How this model is served, and what of its template does not go with exact tokens."""
        by = f"the family {self.family} of renderers" if self._family is not None else "the template alone"
        why = lacks or "it can be cut after an answer, and its calls can be read"
        log.info("how conversations become tokens", folder=str(folder), by=by, because=why, keeps_prefix=self.keeps_prefix)
        if not self.keeps_prefix:
            log.warning("the chat template rewrites earlier turns; known turns keep their sampled tokens", folder=str(folder))
        if self._native and self._shows_tools and not self._reads_calls:
            log.warning("calls in the form of the chat template can not be read; set spec.model.tools to Text", folder=str(folder))

    def _lacks(self) -> str:
        """What the template alone can not do, "" if nothing."""
        lacks = []
        if not self._cuts():
            lacks.append("it cannot be cut after an answer")
        if self._native and self._shows_tools and not self._tagged:
            lacks.append("its calls have a form of their own")
        return " and ".join(lacks)

    def _cuts(self) -> bool:
        """Whether there is a bridge after an answer, and after a call."""
        answered = Message("assistant", "b")
        if self._cut(answered, None, [Message("user", "c")], ()) is None:
            return False
        called = Message("assistant", "b", calls=(ToolCall("call0", "bash", "{}"),))
        results = [Message("tool", "c", call_id="call0")]
        return not (self._native and self._shows_tools) or self._cut(called, None, results, (Tool("bash"),)) is not None

    def _tags_calls(self) -> bool:
        """Whether the template writes calls in the one form that is read here."""
        call = ToolCall("call0", "bash", '{"command": "ls"}')
        dialogue = [_user("a"), {**_assistant(_ANCHOR), "tool_calls": [_shown_call(call)]}]
        try:
            text = self._template.render(dialogue, [_offered(Tool("bash"))], answer_next=False)
        except TemplateError:
            return False
        return [(name, json.loads(arguments)) for name, arguments in read_tagged(text)[1]] == [("bash", call.parsed_arguments)]

    def _rendered(self, dialogue: list[dict[str, Any]], tools: list[dict[str, Any]] | None, answer_next: bool) -> list[int] | None:
        try:
            return self._tokens.encode(self._template.render(dialogue, tools, answer_next=answer_next))
        except TemplateError:
            return None

    def _end_marker(self) -> int | None:
        """The special token with which the template ends an answer, or None."""
        first = self._tokens.encode(self._tail)[:1]
        return first[0] if first and first[0] in self._tokens.special_ids else None

    def _configured_ends(self, folder: Path) -> set[int | None]:
        configured = read_configuration(folder / "generation_config.json").get("eos_token_id")
        ids = configured if isinstance(configured, list) else [configured]
        return {*ids, self._tokens.number(self._template.special("eos_token"))}

    def _offered(self, tools: tuple[Tool, ...]) -> list[dict[str, Any]] | None:
        if not self._native or not tools:
            return None
        return [_offered(tool) for tool in tools]

    def _fit(self, messages: Sequence[Message], names: dict[str, str] | None = None, *, first: bool = True) -> list[dict[str, Any]]:
        """As the template takes them: where it refuses or forgets a system message, or refuses two user messages in a row, users say it all.

        `first`: nothing stands before them.
        """
        names = _names(messages) if names is None else names
        fitted: list[dict[str, Any]] = []
        for position, message in enumerate(messages):
            shown = _shown(message, self._tokens.guard(message.text), names)
            if message.role == "system" and not (self._any_system if first and position == 0 else self._mid_system):
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

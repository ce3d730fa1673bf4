"""The chat template of a Hugging Face folder, rendered as transformers does it, without importing transformers (4.5 s and 650 MB here)."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tidemill_rollout.gateway.conversation import Fault


class BrokenModelFolder(Exception):
    """The model folder lacks what a gateway needs of it."""


class _Generation(Extension):
    """`{% generation %}` marks an answer for transformers' masks; here it only shows its content."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_show"), [], [], body).set_lineno(line)

    def _show(self, caller: Any) -> Any:
        return caller()


class ChatTemplate:
    def __init__(self, folder: Path) -> None:
        self._configuration = _json(folder / "tokenizer_config.json")
        sources = self._sources(folder)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._templates = {name: environment.from_string(source) for name, source in sources.items()}
        except TemplateError as cause:
            raise BrokenModelFolder(f"model folder {folder}: its chat template is not valid Jinja: {cause}") from cause
        self._special = {name: text for name in ("bos_token", "eos_token", "unk_token", "pad_token") if (text := self.special(name))}

    def special(self, name: str) -> str:
        """Text of a special token such as "eos_token", or ""."""
        value = self._configuration.get(name)
        return value.get("content", "") if isinstance(value, dict) else value or ""

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, answer_next: bool) -> str:
        """Raises `TemplateError` when the template refuses this conversation."""
        template = self._templates.get("tool_use" if tools else "default") or self._templates["default"]
        try:
            return template.render(messages=messages, tools=tools, add_generation_prompt=answer_next, **self._special)
        except (TypeError, ValueError, LookupError, RecursionError) as cause:  # a template's own bugs on a conversation it was not written for
            raise TemplateError(str(cause)) from cause

    def _sources(self, folder: Path) -> dict[str, str]:
        path = folder / "chat_template.jinja"
        found = path.read_text() if path.is_file() else self._configuration.get("chat_template")
        if isinstance(found, list):  # several templates, by name
            found = {entry["name"]: entry["template"] for entry in found}
        if isinstance(found, str):
            found = {"default": found}
        if not found or "default" not in found:
            raise BrokenModelFolder(f"model folder {folder}: no chat template; it needs chat_template.jinja, as instruction-tuned models have")
        return dict(found)


def refused(cause: TemplateError) -> Fault:
    return Fault(400, f"the model's chat template refuses this conversation: {cause}")


def read_configuration(path: Path) -> dict[str, Any]:
    """A JSON file of the model folder, empty when it is not there."""
    return _json(path) if path.is_file() else {}


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as cause:
        raise BrokenModelFolder(f"model folder {path.parent}: cannot read {path.name}: {cause}") from cause
    if not isinstance(content, dict):
        raise BrokenModelFolder(f"model folder {path.parent}: {path.name} holds no JSON object")
    return content


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)

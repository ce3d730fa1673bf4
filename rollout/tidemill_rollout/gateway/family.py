"""Model families that the package `renderers` knows, recognised by what their chat template does.

`renderers` has, for each of some twenty-five families, code written and tested by hand that continues a conversation after sampled
tokens and takes an answer's tokens apart. It picks by the name of a model on the Hub, which a folder on a disk or a fine-tune does not
have. Here a family is taken when its special tokens are in the folder's tokenizer and it renders a few dialogues, with and without
tools, to exactly the tokens that the folder's own template gives.

It is asked where the template alone (`render.py`) does not suffice, for two things:

- the bridge from an answer to the next one, where an answer is written otherwise once something follows. Thoughts of earlier turns
  stay: the policy sampled them, and the exact tokens are what is trained;
- reading calls that are not `<tool_call>{json}</tool_call>`. Those are read by `tools.py`, which keeps arguments as the policy wrote
  them and the words between two calls; here arguments come out as values, and are written as JSON again.

Where the template suffices (Qwen3 and all who write calls as it does) both give the same tokens, a test says so, and `renderers` would only
cost each gateway a second at its start and 40 MB. A whole conversation is always rendered by the template: a family is recognised by
rendering the same, so nothing could be gained.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from tidemill_rollout.gateway.tokens import Tokens
from tidemill_rollout.gateway.tools import Reading, as_object

Dialogue = list[dict[str, Any]]
Render = Callable[[Dialogue, list[dict[str, Any]] | None, bool], list[int] | None]
"""Tokens of the folder's own template for a dialogue, tools and whether an answer comes next; None where it refuses."""

_ASKS_THE_NETWORK = frozenset(("gpt-oss",))
"""Its code downloads a vocabulary when it is made. A gateway asks nobody outside, and may stand where nobody answers."""

_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
_CALL = {"id": "call0", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls é"}}}
_ASK, _ANSWER = {"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}
_RESULT = {"role": "tool", "content": "three", "tool_call_id": "call0", "name": "bash"}
_PROBES: tuple[tuple[Dialogue, bool], ...] = (
    ([_ASK], False),
    ([{"role": "system", "content": "be"}, _ASK], False),
    ([_ASK, _ANSWER, {"role": "user", "content": "four"}], False),
    ([_ASK], True),
    ([_ASK, {**_ANSWER, "tool_calls": [_CALL]}, _RESULT], True),
)


class Family:
    def __init__(self, name: str, known: Any, asked: list[int], stand_in: list[int]) -> None:
        self.name = name
        self._known = known
        self._asked = asked  # tokens of a short dialogue up to where an answer begins
        self._stand_in = stand_in  # an answer to it without its end; what follows an answer does not depend on its words
        self._ends = frozenset(known.get_stop_token_ids())

    def bridge(self, last_token: int | None, new: Dialogue, tools: list[dict[str, Any]] | None) -> list[int] | None:
        """Tokens between the last sampled one and the next answer, or None."""
        answered = [*self._stand_in, *([last_token] if last_token in self._ends else [])]
        continued = self._known.bridge_to_next_turn(self._asked, answered, new, tools=tools)
        if continued is None:
            return None
        before = [*self._asked, *answered]
        ids: list[int] = continued.token_ids
        return ids[len(before) :] if ids[: len(before)] == before else None

    def read(self, sampled: Sequence[int], tools: list[dict[str, Any]] | None, decode: Callable[[Sequence[int]], str]) -> Reading:
        """Of a call that can not be read the words stay text."""
        read = self._known.parse_response(list(sampled), tools=tools, prompt_ids=self._asked)
        texts = [read.content] if read.content else []
        calls = []
        for call in read.tool_calls:
            arguments = _written(call.arguments)
            if call.status.value == "ok" and call.name and arguments is not None:
                calls.append((call.name, arguments))
            else:
                texts.append(decode(sampled[slice(*call.token_span)]) if call.token_span else call.raw)
        return Reading("\n".join(texts), (read.reasoning_content or "").strip(), tuple(calls))


def recognised(tokens: Tokens, render: Render, end_ids: frozenset[int]) -> Family | None:
    """The family whose rendering is that of the template. The package takes a second to load, so it is loaded here only."""
    from renderers.base import MODEL_RENDERER_MAP

    tokenizer = _Tokenizer(tokens)
    expected = [(dialogue, with_tool, render(dialogue, [_TOOL] if with_tool else None, True)) for dialogue, with_tool in _PROBES]
    for name in sorted(set(MODEL_RENDERER_MAP.values()) - _ASKS_THE_NETWORK):
        known = _made(name, tokenizer)
        if known is None or not all(ids is None or ids == _rendered(known, dialogue, tool) for dialogue, tool, ids in expected):
            continue
        asked = expected[0][2]
        for words in ("two", "</think>two"):  # a thought that the prompt opened must be closed before an answer can end
            family = Family(name, known, asked or [], tokens.encode(words))
            if all(family.bridge(last, [_ASK], None) is not None for last in (None, *end_ids & family._ends)):
                return family
    return None


class _Tokenizer:
    """As `renderers` wants a tokenizer. Without character offsets, which only its masks for supervised training need."""

    name_or_path = ""
    unk_token_id = None
    eos_token_id = None

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return self._tokens.encode(text)

    def decode(self, ids: Any, *_: Any, skip_special_tokens: bool = False, **__: Any) -> str:
        return self._tokens.decode([ids] if isinstance(ids, int) else ids, special=not skip_special_tokens)

    def convert_tokens_to_ids(self, names: Any) -> Any:
        return self._tokens.number(names) if isinstance(names, str) else [self._tokens.number(name) for name in names]


def _made(name: str, tokenizer: _Tokenizer) -> Any:
    """None where the tokenizer lacks what the family needs; each family says so in a way of its own."""
    from renderers import config_from_name, create_renderer

    wishes: dict[str, Any] = {"thinking_retention": "all"}
    if name == "llama-3":  # its template names the day; what is used here does not depend on it
        wishes["date_string"] = datetime.now().strftime("%d %b %Y")
    try:
        return create_renderer(tokenizer, type(config_from_name(name))(**wishes))
    except Exception:
        return None


def _rendered(known: Any, dialogue: Dialogue, with_tool: bool) -> list[int] | None:
    try:
        ids: list[int] = known.render_ids(dialogue, tools=[_TOOL] if with_tool else None, add_generation_prompt=True)
    except Exception:  # a family's refusal is a mismatch, whatever it looks like
        return None
    return ids


def _written(arguments: Any) -> str | None:
    """Arguments as JSON text. Text stays as the policy wrote it."""
    if isinstance(arguments, str):
        return arguments if as_object(arguments) is not None else None
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else None

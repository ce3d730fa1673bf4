"""The two models that the tests run for real, with their own tokenizers and templates."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import tiny_model
from tidemill.api.rljob import Tools
from tidemill_rollout.gateway.conversation import Message, Tool
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.model import smollm2

BASH = Tool("bash", "Run", {"type": "object", "properties": {"command": {"type": "string"}}})
texts = st.text("aZ9 \n\té漢🎉<|im_end|>{}", max_size=30) | st.just("<|im_end|>\n<|im_start|>system\n")
"""SmolLM2's vocabulary lacks the tokens of some bytes: text of any characters would not come back."""
messages = st.lists(st.builds(Message, st.sampled_from(["user", "system", "assistant"]), texts), max_size=4)
both = pytest.mark.parametrize("name", ["tiny", "SmolLM2"])


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Renderer]:
    from transformers import AutoTokenizer

    package = smollm2._package_folder()
    folder = tmp_path_factory.mktemp("smollm2")
    AutoTokenizer.from_pretrained(package, gguf_file=next(package.glob("*.gguf")).name).save_pretrained(folder)
    made = {"tiny": Renderer(tiny_model(), Tools.TEXT), "SmolLM2": Renderer(Path(folder), Tools.TEXT)}
    return made.__getitem__


@both
@settings(max_examples=60)
@given(before=messages.filter(bool), answer=texts, after=messages, ends=st.booleans())
def test_prompt_answer_and_bridge_are_the_whole_conversation(
    renderer: Callable[[str], Renderer], name: str, before: list[Message], answer: str, after: list[Message], ends: bool
) -> None:
    """Also when the answer was cut: then its end is given.

    White space at an answer's beginning is a token of its own when it is sampled, and may be one with the template's line end when it is read.
    """
    made = renderer(name)
    assert made.keeps_prefix
    [end] = made.end_ids
    tokens = made._tokens
    sampled = [*tokens.encode(tokens.guard(answer)), *([end] if ends else [])]
    bridge = made.bridge(Message("assistant", answer), sampled[-1] if sampled else None, after, ())
    assert bridge is not None
    went_on, read = made.prompt(before, ()) + sampled + bridge, made.prompt([*before, Message("assistant", answer), *after], ())
    assert tokens.decode(went_on, special=True) == tokens.decode(read, special=True)
    if not answer[:1].isspace():
        assert went_on == read


@both
@given(text=texts)
def test_text_is_tokens_that_say_the_same_and_each_shows_its_bytes(renderer: Callable[[str], Renderer], name: str, text: str) -> None:
    tokens = renderer(name)._tokens
    ids = tokens.encode(tokens.guard(text))
    assert tokens.decode(ids, special=True) == text
    assert b"".join(map(tokens.bytes_of, ids)).decode() == text


@both
@given(before=texts, command=texts.filter(lambda text: text.strip() and "{" not in text))
def test_a_call_that_was_sampled_is_read_back_word_by_word(renderer: Callable[[str], Renderer], name: str, before: str, command: str) -> None:
    made = renderer(name)
    tokens = made._tokens
    said = f"{before}\n```tool bash\n{command}\n```"
    read = made.read([*tokens.encode(tokens.guard(said)), *made.end_ids], (BASH,))
    [(tool, arguments)] = read.calls
    assert (tool, json.loads(arguments)) == ("bash", {"command": command})
    assert read.text == before.strip()

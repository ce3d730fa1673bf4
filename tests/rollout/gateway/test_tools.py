"""The text tool protocol, and reading what was sampled."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_rollout.gateway.conversation import Message, Tool, ToolCall
from tidemill_rollout.gateway.tools import as_text, read_fenced, read_reasoning, read_tagged

BASH = Tool("bash", "Run a command", {"type": "object", "properties": {"command": {"type": "string"}}})
EDIT = Tool("edit", "Edit a file", {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}})


@pytest.mark.parametrize(
    ("sampled", "text", "calls"),
    [
        ('```tool edit\n{"path": "a"}\n```', "", [("edit", '{"path": "a"}')]),
        ('Now.\n```tool edit\n{"path": "a",\n "text": "```"}\n```\nDone.', "Now.\n\nDone.", [("edit", '{"path": "a",\n "text": "```"}')]),
        ("```tool bash\nls -l\n```", "", [("bash", '{"command": "ls -l"}')]),
        ("```tool edit\nplain\n```", "```tool edit\nplain\n```", []),
        ("```tool bash\n\n```", "```tool bash\n\n```", []),
        ("```tool bash\nls", "```tool bash\nls", []),
        ("```python\nprint()\n```", "```python\nprint()\n```", []),
        ("", "", []),
    ],
)
def test_blocks_are_calls_and_the_rest_is_text(sampled: str, text: str, calls: list[tuple[str, str]]) -> None:
    assert read_fenced(sampled, (BASH, EDIT)) == (text, tuple(calls))


def test_tagged_calls_keep_their_arguments_as_written() -> None:
    text, calls = read_tagged('Look.\n<tool_call>\n{"name": "bash", "arguments": {"n":  1000.0}}\n</tool_call>\n<tool_call>{"name": 3}</tool_call>')
    assert calls == (("bash", '{"n":  1000.0}'),)
    assert text == 'Look.\n\n<tool_call>{"name": 3}</tool_call>'


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), st.text(alphabet="abc \n", max_size=20))
def test_what_is_shown_is_read_back(arguments: dict[str, str], said: str) -> None:
    call = ToolCall("id", "edit", json.dumps(arguments))
    [shown] = as_text((Message("assistant", said.strip(), calls=(call,)),), {})
    assert read_fenced(shown.text, (EDIT,)) == (said.strip(), (("edit", call.arguments),))


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "rest"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm", "yes"),
        ("hm</think>yes", True, "hm", "yes"),
        ("yes <think>", False, "", "yes <think>"),
        ("<think>cut", False, "cut", ""),
    ],
)
def test_reasoning_is_told_apart(text: str, opened: bool, reasoning: str, rest: str) -> None:
    assert read_reasoning(text, opened) == (reasoning, rest)


def test_a_call_that_is_nested_too_deep_to_be_read_is_text() -> None:
    deep = '{"a":' * 50_000
    fenced, tagged = f"```tool edit\n{deep}\n```", f'<tool_call>{{"name": "edit", "arguments": {deep} }}</tool_call>'
    assert read_fenced(fenced, (EDIT,)) == (fenced, ())
    assert read_tagged(tagged) == (tagged, ())


def test_arguments_may_hold_the_end_tag_as_text() -> None:
    arguments = '{"text": "<tool_call>{}</tool_call>"}'
    assert read_tagged(f'<tool_call>{{"name": "edit", "arguments": {arguments}}}</tool_call>Done.') == ("Done.", (("edit", arguments),))


@pytest.mark.parametrize(
    "stutter",
    [
        '<tool_call>{"name": "bash", "a": ',
        "<tool_call>{}}",
        '<tool_call>{"name"}</tool_call>',
        "```tool bash\nls\n",
        "```tool nope\n{x\n```\n",
        "<think>",
    ],
)
def test_an_answer_that_stutters_is_read_at_once(stutter: str) -> None:
    """A million characters, of which the square takes minutes."""
    text = stutter * (1_000_000 // len(stutter))
    started = time.process_time()
    read_tagged(text)
    read_fenced(text, (BASH, EDIT))
    read_reasoning(text, opened=False)
    assert time.process_time() - started < 20

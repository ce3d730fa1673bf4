"""Who makes a call, by the rule of each preset. What real programs send is in tests/harnesses; here is what else may come."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_rollout.gateway.conversation import Ask, Message, Tool
from tidemill_rollout.harness import claude_code, codex, opencode, qwen_code
from tidemill_rollout.harness.identity import LONGEST_ID, Identity
from tidemill_rollout.harness.presets import PRESETS, identify_of


def ask(*texts: str, tools: tuple[str, ...] = (), **fields: Any) -> Ask:
    return Ask("chat", tuple(Message("user", text) for text in texts), tuple(Tool(name) for name in tools), **fields)


_READ = ("x-claude-code-agent-id", "x-codex-parent-thread-id", "thread-id", "x-codex-turn-metadata", "x-session-id", "x-parent-session-id")
HEADERS = st.dictionaries(st.sampled_from(_READ), st.text(max_size=300) | st.just("\udcff" * 3))
TEXTS = st.lists(st.text(max_size=50), max_size=6)
TOOLS = st.lists(st.text(max_size=8), max_size=3)


@given(st.sampled_from(sorted(PRESETS)), HEADERS, TEXTS, TOOLS)
def test_no_request_makes_a_rule_raise_and_what_it_finds_can_be_stored(
    preset: str, headers: dict[str, str], texts: list[str], tools: list[str]
) -> None:
    found = identify_of(preset)(headers, ask(*texts, tools=tuple(tools)))
    for name in (found.agent, found.parent_agent):
        name.encode()
        assert len(name) <= LONGEST_ID


def test_a_preset_that_is_not_known_has_the_wires_own_rule() -> None:
    told = ask("go", agent="a", parent_agent="b", summary=True)
    assert identify_of("of a newer conductor")({}, told) == identify_of("generic")({}, told) == Identity("a", "b", True)


def test_the_agents_of_claude_code_name_themselves_and_their_parents_and_compact_too() -> None:
    headers = {"x-claude-code-agent-id": "a2", "x-claude-code-parent-agent-id": "a1"}
    assert claude_code.identify(headers, ask("go")) == Identity("a2", "a1")
    assert claude_code.identify({}, ask("task", f"so: {claude_code.SUMMARY}.")) == Identity(summary=True)
    assert claude_code.identify(headers, ask(claude_code.SUMMARY)) == Identity("a2", "a1", True)
    assert claude_code.identify({}, ask(claude_code.SUMMARY, "go on")) == Identity()  # it was asked for earlier


@pytest.mark.parametrize(("parent", "shown"), [("root", ""), ("t1", "t1")])
def test_a_thread_of_codex_that_another_started_is_a_sub_agent(parent: str, shown: str) -> None:
    headers = {"session-id": "root", "thread-id": "t2", "x-codex-parent-thread-id": parent, "x-codex-window-id": "t2:0"}
    assert codex.identify(headers, ask("go")) == Identity("t2", shown)
    del headers["thread-id"]
    assert codex.identify(headers, ask("go")) == Identity("t2", shown)
    assert codex.identify({"session-id": "root", "thread-id": "root"}, ask("go")) == Identity()


def test_codex_says_itself_when_it_compacts() -> None:
    assert codex.identify({"x-codex-turn-metadata": '{"request_kind":"compaction"}'}, ask("go")).summary
    assert not codex.identify({"x-codex-turn-metadata": '{"request_kind":"turn"}'}, ask("go")).summary
    assert codex.identify({}, ask("task", f"You are performing a {codex.SUMMARY}.")).summary


def test_an_agent_of_qwen_code_that_cannot_start_others_is_a_sub_agent_with_one_name_for_all_its_calls() -> None:
    first, second = ask("system", "here", "Got it.", "task", tools=("read",)), ask("system", "here", "Got it.", "another", tools=("read",))
    later = ask("system", "here", "Got it.", "task", "an answer", "a result", tools=("read",))
    assert qwen_code.identify({}, ask("system", "here", "Got it.", "task", tools=("read", "agent"))) == Identity()
    names = [qwen_code.identify({}, request).agent for request in (first, later, second)]
    assert names[0] == names[1] != names[2]
    assert all(names)
    assert qwen_code.identify({}, ask(f"First think. Then, {qwen_code.SUMMARY}.")) == Identity(summary=True)


def test_a_session_of_opencode_with_a_parent_is_a_sub_agent() -> None:
    assert opencode.identify({"x-session-id": "s1"}, ask("go")) == Identity()
    assert opencode.identify({"x-session-id": "s2", "x-parent-session-id": "s1"}, ask("go")) == Identity("s2")
    assert opencode.identify({"x-session-id": "s1"}, ask(f"Do not say so {opencode.SUMMARY}.")) == Identity(summary=True)

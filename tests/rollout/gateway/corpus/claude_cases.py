"""Claude Code's ways with a conversation."""

from __future__ import annotations

from typing import Any

from tests.rollout.gateway.corpus.case import Cases
from tests.rollout.gateway.corpus.claude import Claude, calls
from tests.rollout.gateway.corpus.desk import Desk

cases = Cases("claude-code")


def plain(desk: Desk, **how: Any) -> Claude:
    """Without tools, so that the trees are short."""
    return Claude(desk, tools=(), **how)


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > b
      user: c
      > d
        user: e
        > f
""")
async def cache_markers_roll_to_the_last_block_and_change_nothing(desk: Desk) -> None:
    claude = Claude(desk)
    for text, answer in (("a", "b"), ("c", "d"), ("e", "f")):
        claude.user(text)
        await claude.ask(answer)


@cases("""
    system: You are an agent.
    user: a
    system: note
    > b
      user: c
      system: other
      > d
        user: e
        > f
""")
async def system_messages_stand_where_they_are_and_turn_from_lists_into_strings(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    claude.note("note")
    await claude.ask("b")
    claude.user("c")
    claude.note("other")
    await claude.ask("d")
    claude.user("e")
    await claude.ask("f")


@cases("""
    system: You are an agent.\\nYour folder is /app.
    user: a
    > b
      user: c
      > d
""")
async def the_billing_line_is_stripped_and_its_hash_may_change(desk: Desk) -> None:
    claude = plain(desk)
    for number, text in enumerate("ac"):
        claude.system = [f"x-anthropic-billing-header: cc_version=2.1; cch={number}aa", "You are an agent.", "Your folder is /app."]
        claude.user(text)
        await claude.ask("bd"[number])


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def any_model_name_is_taken_and_another_one_does_not_fork(desk: Desk) -> None:
    claude = plain(desk, model="claude-sonnet-4-5")
    claude.user("a")
    await claude.ask("b")
    claude.model = "claude-haiku-4-5"
    claude.user("c")
    await claude.ask("d")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command":  "ls", "timeout": 1000.0}]
      tool: README
      > b
""")
async def tool_input_is_written_anew_and_1000_0_comes_back_as_1000(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    (call,) = calls(await claude.ask('[bash {"command":  "ls", "timeout": 1000.0}]'))
    assert call["input"] == {"command": "ls", "timeout": 1000.0}
    call["input"]["timeout"] = 1000
    claude.results((call, "README"))
    await claude.ask("b")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "ls", "timeout": "1"}]
      tool: README
      > b
""")
async def text_that_the_schema_calls_a_number_comes_back_as_one(desk: Desk) -> None:
    claude = Claude(desk, thinking=False)
    claude.user("a")
    (call,) = calls(await claude.ask('[bash {"command": "ls", "timeout": "1"}]'))
    call["input"]["timeout"] = 1
    claude.results((call, "README"))
    await claude.ask("b")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "ls"}]
      tool: InputValidationError
      > b
""")
async def input_that_it_could_not_parse_comes_back_wrapped(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    (call,) = calls(await claude.ask('[bash {"command": "ls"}]'))
    call["input"] = {"__unparsedToolInput": '{"command": "ls'}
    claude.results((call, "InputValidationError"))
    await claude.ask("b")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > <tool_call>\\n{"name": "bash", "arguments": {"command": }\\n</tool_call>
      user: what?
      > b
""")
async def a_call_that_is_no_json_stays_text(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    blocks = await claude.ask('<tool_call>\\n{"name": "bash", "arguments": {"command": }\\n</tool_call>')
    assert not calls(blocks)
    claude.user("what?")
    await claude.ask("b")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "ls"}]\\nThat was all.
      tool: README
      > b
""")
async def text_after_a_call_moves_before_it(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    blocks = await claude.ask('[bash {"command": "ls"}]\\nThat was all.')
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    claude.results((calls(blocks)[0], "README"))
    await claude.ask("b")


TWO = '[bash {"command": "one"}]\\n[bash {"command": "two"}]'


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "one"}]\\n[bash {"command": "two"}]
      tool: 1
      tool: 2
      > b
        user: c
        > d
""")
async def parallel_results_come_as_they_end_and_stand_in_the_order_of_the_calls(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    one, two = calls(await claude.ask(TWO))
    claude.results((two, "2"), (one, "1"))
    await claude.ask("b")
    claude.user("c")
    await claude.ask("d")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "one"}]\\n[bash {"command": "two"}]
      tool: 1
      tool: 2
      user: and now?
      > b
""")
async def results_may_come_in_messages_of_their_own_with_words_behind_them(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    one, two = calls(await claude.ask(TWO))
    claude.results((two, "2"))
    claude.results((one, "1"), text="and now?")
    await claude.ask("b")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "one"}]\\n[bash {"command": "two"}]
      tool: 1
      > b
""")
async def a_second_call_that_got_lost_with_its_stream_does_not_fork(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    blocks = await claude.ask(TWO)
    lost = calls(blocks)[1]
    blocks.remove(lost)
    claude.results((calls(blocks)[0], "1"))
    await claude.ask("b")


@cases("""
    system: You are an agent.
    user: a
    > <think>\\nhm\\n</think>\\n\\nb
      user: c
      > d
""")
async def thoughts_come_back_with_their_signature(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    thinking, text = await claude.ask("<think>\\nhm\\n</think>\\n\\nb")
    assert (thinking["thinking"], text["text"]) == ("hm", "b")
    claude.user("c")
    await claude.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def the_signature_finds_its_turn_whatever_became_of_the_text(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    thinking, text = await claude.ask("b")
    assert thinking["thinking"] == ""
    text["text"] = "B!"
    claude.user("c")
    await claude.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > <think>hm</think>b
      user: c
      > d
""")
async def cleared_thoughts_do_not_fork(desk: Desk) -> None:
    """Context editing removes them, and the signature with them: the words find the turn."""
    claude = plain(desk)
    claude.user("a")
    blocks = await claude.ask("<think>hm</think>b")
    del blocks[0]
    claude.user("c")
    await claude.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > <think>hm</think>b
      user: c
      > d
""")
async def redacted_thoughts_are_passed_over(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    blocks = await claude.ask("<think>hm</think>b")
    blocks[0] = {"type": "redacted_thinking", "data": "xxx"}
    claude.user("c")
    await claude.ask("d")

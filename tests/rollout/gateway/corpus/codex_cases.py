"""Codex on Responses: items instead of messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.rollout.gateway.corpus.case import Cases
from tests.rollout.gateway.corpus.desk import Desk, Refused
from tests.rollout.gateway.corpus.openai_agents import Codex, calls
from tidemill_rollout.harness import codex

cases = Cases("codex")

COMPACT = f"You are performing a {codex.SUMMARY}."


def plain(desk: Desk, **how: Any) -> Codex:
    return Codex(desk, tools=(), **how)


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
        user: e
        > f
""")
async def items_come_back_to_the_letter(desk: Desk) -> None:
    codex = plain(desk)
    for text, answer in (("a", "b"), ("c", "d"), ("e", "f")):
        codex.user(text)
        await codex.ask(answer)


@cases("""
    tools: bash
    system: You are an agent.
    system: Sandboxing is off.
    user: a
    > <think>\\nhm\\n</think>\\n\\nLook.\\n[bash {"command":  "ls"}]
      tool: README
      > b
""")
async def thought_words_and_call_of_one_answer_are_three_items(desk: Desk) -> None:
    codex = Codex(desk)
    codex.user("Sandboxing is off.", role="developer")
    codex.user("a")
    items = await codex.ask('<think>\\nhm\\n</think>\\n\\nLook.\\n[bash {"command":  "ls"}]')
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    codex.results((items[-1], "README"))
    await codex.ask("b")


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
async def outputs_come_as_they_end_and_may_stand_between_the_calls(desk: Desk) -> None:
    codex = Codex(desk)
    codex.user("a")
    *thoughts, one, two = await codex.ask('[bash {"command": "one"}]\\n[bash {"command": "two"}]')
    codex.input = [*codex.input[: 1 + len(thoughts)], one]
    codex.results((one, "1"))
    codex.input.append(two)
    codex.results((two, "2"))
    await codex.ask("b")
    codex.user("c")
    await codex.ask("d")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > Two.\\n[bash {"command": "one"}]\\n[bash {"command": "two"}]
      tool: 1
      > b
""")
async def items_that_were_finished_before_a_cut_stay_in_its_history(desk: Desk) -> None:
    codex = Codex(desk)
    codex.user("a")
    items = await codex.ask('Two.\\n[bash {"command": "one"}]\\n[bash {"command": "two"}]')
    codex.input.pop()
    codex.results((calls(items)[0], "1"))
    await codex.ask("b")


@cases("""
    system: You are an agent.
    user: a
    > <think>hm</think>b
      user: c
      > d
""")
async def without_encrypted_content_the_ids_of_items_find_the_turn(desk: Desk) -> None:
    codex = plain(desk)
    codex.user("a")
    for item in await codex.ask("<think>hm</think>b"):
        item.pop("encrypted_content", None)
    codex.input[1:] = [{name: value for name, value in item.items() if name != "encrypted_content"} for item in codex.input[1:]]
    codex.user("c")
    await codex.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > <think>hm</think>b
      user: c
      > d
""")
async def without_ids_and_thoughts_the_words_find_the_turn(desk: Desk) -> None:
    codex = plain(desk)
    codex.user("a")
    await codex.ask("<think>hm</think>b")
    codex.input[1:] = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}]
    codex.user("c")
    await codex.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def traces_of_tools_that_others_run_are_passed_over(desk: Desk) -> None:
    codex = plain(desk)
    codex.user("a")
    await codex.ask("b")
    codex.input += [{"type": "ghost_snapshot", "ghost_commit": {"id": "x"}}, {"type": "web_search_call", "status": "completed"}]
    codex.user("c")
    await codex.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def a_stored_response_is_not_gone_on_from(desk: Desk) -> None:
    codex = plain(desk)
    codex.user("a")
    await codex.ask("b")
    codex.user("c")
    with pytest.raises(Refused, match=r"400.*previous_response_id"):
        await codex.send(previous_response_id="resp_1")
    await codex.ask("d", stream=False)


@cases(f"""
    system: You are an agent.
    user: a
    > b
      user: {COMPACT}
      > (summary) S
    system: You are an agent.
    user: a
    user: Another model began: S
    > c
      user: d
      > e
""")
async def a_compaction_opens_another_window(desk: Desk) -> None:
    codex = plain(desk)
    codex.user("a")
    await codex.ask("b")
    codex.user(COMPACT)
    await codex.ask("S")
    codex.windows, codex.input = 1, codex.input[:1]
    codex.user("Another model began: S")
    await codex.ask("c")
    codex.user("d")
    await codex.ask("e")


@cases("""
    system: You are an agent.
    user: a
    > b
    system: You are an agent.
    user: look
    > (t1 of t0) found
      user: more
      > (t1 of t0) done
""")
async def a_thread_with_a_parent_is_a_sub_agent(desk: Desk) -> None:
    codex, child = plain(desk, thread="t0"), plain(desk, thread="t1", parent="t0")
    codex.user("a")
    child.user("look")
    await asyncio.gather(codex.ask("b", to="\na"), child.ask("found", to="look"))
    child.user("more")
    await child.ask("done")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def a_stream_that_broke_is_asked_for_again_and_goes_on(desk: Desk) -> None:
    codex = plain(desk)
    codex.user("a")
    desk.will_say("b")
    async with desk.hold():
        first = asyncio.create_task(codex.send())
        await desk.holding.wait()
        first.cancel()
    codex.keep(await codex.send())
    codex.user("c")
    await codex.ask("d")


@cases("""
    tools: patch
    system: You are an agent.
    user: a
    > [patch {"input": "*** Begin"}]
      tool: ok
      > b
""")
async def a_custom_tool_takes_text(desk: Desk) -> None:
    codex = Codex(desk, tools=("patch",))
    codex.user("a")
    (call,) = calls(await codex.ask('[patch {"input": "*** Begin"}]'))
    assert (call["type"], call["input"]) == ("custom_tool_call", "*** Begin")
    codex.results((call, "ok"))
    await codex.ask("b")

"""Claude Code: answers that are dropped, cut, or asked for again, and histories that are edited."""

from __future__ import annotations

import asyncio
import copy

from tests.rollout.gateway.corpus.case import Cases
from tests.rollout.gateway.corpus.claude import Claude, calls
from tests.rollout.gateway.corpus.claude_cases import plain
from tests.rollout.gateway.corpus.desk import Desk

cases = Cases("claude-code")


@cases("""
    system: You are an agent.
    user: a
    > <think>hm</think>
    system: You are an agent.
    user: a\\n(no output)
    > b
""")
async def an_answer_of_thoughts_alone_is_dropped_and_a_note_appended(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("<think>hm</think>")
    claude.messages.pop()
    claude.messages[0]["content"].append({"type": "text", "text": "(no output)"})
    await claude.ask("b")


@cases("""
    system: You are an agent.
    user: a
    >> one t
      user: Go on where you stopped.
      > wo
""")
async def an_answer_cut_by_max_tokens_is_kept_and_gets_its_end_marker_as_context(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("one two", max_tokens=5)
    claude.user("Go on where you stopped.")
    await claude.ask("wo")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def a_resumed_session_goes_on_and_no_two_answers_have_one_id(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("b")
    resumed = plain(desk, messages=copy.deepcopy(claude.messages), ids=claude.ids)
    resumed.user("c")
    await resumed.ask("d")
    assert len(set(claude.ids)) == 2


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def tokens_are_counted_without_leaving_a_turn(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("b")
    await desk.post("v1/messages/count_tokens?beta=true", {"model": "policy", "messages": [{"role": "user", "content": "a large file"}]})
    claude.user("c")
    await claude.ask("d")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "plot"}]
      tool: done\\n[image: the model reads text only]
      > b
""")
async def an_image_in_a_result_becomes_a_note(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    (call,) = calls(await claude.ask('[bash {"command": "plot"}]'))
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
    claude.results((call, [{"type": "text", "text": "done"}, image]))
    await claude.ask("b")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "ls"}]
      tool:
      > b
""")
async def a_result_may_be_empty(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    (call,) = calls(await claude.ask('[bash {"command": "ls"}]'))
    claude.results((call, []))
    await claude.ask("b")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "cat f"}]
      tool: \\<|im_end|>\\<|im_start|>user
      > b
""")
async def special_tokens_in_a_file_are_text(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    (call,) = calls(await claude.ask('[bash {"command": "cat f"}]'))
    claude.results((call, "<|im_end|><|im_start|>user"))
    await claude.ask("b")


@cases("""
    system: You are an agent.
    user: a
    > one STOP two
      user: c
      > d
""")
async def what_was_sampled_behind_a_stop_string_stays_in_the_tree(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    blocks = await claude.ask("one STOP two", stop_sequences=["STOP"])
    assert blocks[-1]["text"] == "one "
    claude.user("c")
    await claude.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
""")
async def two_requests_with_one_body_at_once_are_one_turn_with_one_answer(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    desk.will_say("b")
    async with desk.hold():
        first = asyncio.create_task(claude.send())
        await desk.holding.wait()
        second = asyncio.create_task(claude.send())
        await desk.attached(1)
    assert await first == await second
    assert len(set(claude.ids)) == 2


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def a_harness_that_hung_up_gets_the_answer_that_was_under_way(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    desk.will_say("b")
    async with desk.hold():
        first = asyncio.create_task(claude.send())
        await desk.holding.wait()
        first.cancel()
    claude.keep(await claude.send())
    claude.user("c")
    await claude.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def its_retry_without_streaming_gets_the_same_answer(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    desk.will_say("b")
    async with desk.hold():
        first = asyncio.create_task(claude.send())
        await desk.holding.wait()
        first.cancel()
        second = asyncio.create_task(claude.send(stream=False))
        await desk.attached(1)
    claude.keep(await second)
    claude.user("c")
    await claude.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
    system: You are an agent.
    user: a
    > other
      user: c
      > d
""")
async def the_same_question_after_an_answer_was_delivered_is_a_new_turn(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("b")
    claude.messages.pop()
    await claude.ask("other")
    claude.user("c")
    await claude.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
      user: C
      > D
""")
async def a_message_that_was_edited_forks_where_it_differs(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("b")
    claude.user("c")
    await claude.ask("d")
    del claude.messages[-2:]
    claude.user("C")
    await claude.ask("D")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "ls"}]
      tool: README
      > b
      tool: [Old tool result content cleared]
      assistant: b
      user: c
      > d
""")
async def a_result_that_was_cleared_forks_there_and_later_answers_become_context(desk: Desk) -> None:
    claude = Claude(desk)
    claude.user("a")
    (call,) = calls(await claude.ask('[bash {"command": "ls"}]'))
    claude.results((call, "README"))
    await claude.ask("b")
    claude.messages[2]["content"][0]["content"] = "[Old tool result content cleared]"
    claude.user("c")
    await claude.ask("d")

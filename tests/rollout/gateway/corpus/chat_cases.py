"""qwen-code and opencode on Chat Completions: they stream, and write tool arguments anew."""

from __future__ import annotations

import asyncio

from tests.rollout.gateway.corpus.case import Cases
from tests.rollout.gateway.corpus.desk import Desk
from tests.rollout.gateway.corpus.openai_agents import Chat, calls
from tidemill_rollout.harness import opencode as opencode_preset
from tidemill_rollout.harness import qwen_code

qwen = Cases("qwen-code")
opencode = Cases("opencode")

COMPACT = f"First {qwen_code.SUMMARY}."
CONTINUE = f"Go on, {opencode_preset.SUMMARY}."


def plain(desk: Desk, streams: bool = False) -> Chat:
    return Chat(desk, tools=(), streams=streams)


def in_a_hurry(desk: Desk, *tools: str) -> Chat:
    """qwen-code, whose main agent is the one that can start others, and opencode."""
    return Chat(desk, tools=tools or ("bash", "agent"), streams=True, rewrites=True)


@qwen("""
    tools: bash agent
    system: You are an agent.
    user: a
    > [bash {"timeout": 1000.0, "command":  "ls"}]
      tool: README
      > b
""")
async def arguments_are_written_anew_in_a_stream(desk: Desk) -> None:
    chat = in_a_hurry(desk)
    chat.user("a")
    (call,) = calls(await chat.ask('[bash {"timeout": 1000.0, "command":  "ls"}]'))
    assert call["function"]["arguments"] == '{"timeout":1000.0,"command":"ls"}'
    chat.results((call, "README"))
    await chat.ask("b")


@qwen("""
    tools: bash agent
    system: You are an agent.
    user: a
    > [bash {"command": "ls", "timeout": 1000.0}]
      tool: README
      > b
""")
async def ids_of_its_own_leave_the_form_of_the_call_to_find_the_turn(desk: Desk) -> None:
    chat = in_a_hurry(desk)
    chat.user("a")
    (call,) = calls(await chat.ask('[bash {"command": "ls", "timeout": 1000.0}]'))
    call["id"] = "my-id-1"
    call["function"]["arguments"] = '{"timeout":1000,"command":"ls"}'
    chat.results((call, "README"))
    await chat.ask("b")


@qwen("""
    system: You are an agent.
    user: a
    > <think>\\nhm\\n</think>\\n\\nb
      user: c
      > <think>\\naha\\n</think>\\n\\nd
        user: e
        > f
""")
async def thoughts_come_back_as_reasoning_content_or_not_at_all(desk: Desk) -> None:
    chat = plain(desk, streams=True)
    chat.user("a")
    answer = await chat.ask("<think>\\nhm\\n</think>\\n\\nb")
    assert (answer["reasoning_content"], answer["content"]) == ("hm", "b")
    chat.user("c")
    await chat.ask("<think>\\naha\\n</think>\\n\\nd")
    for message in chat.messages:
        message.pop("reasoning_content", None)
    chat.user("e")
    await chat.ask("f")


@qwen(f"""
    system: You are an agent.
    user: a
    > b
      user: {COMPACT}
      > (summary) S
    system: You are an agent.
    user: S
    assistant: Got it.
    user: c
    > d
""")
async def its_compression_begins_anew_with_an_answer_that_nobody_sampled(desk: Desk) -> None:
    chat = plain(desk, streams=True)
    chat.user("a")
    await chat.ask("b")
    chat.user(COMPACT)
    await chat.ask("S")
    anew = plain(desk, streams=True)
    anew.user("S")
    anew.messages.append({"role": "assistant", "content": "Got it."})
    anew.user("c")
    await anew.ask("d")


@qwen("""
    tools: bash agent
    system: You are an agent.
    user: a
    > [agent {"prompt": "look"}]
      tool: found
      > b
    tools: bash
    system: You look things up.
    user: look
    > (hashed) [bash {"command": "ls"}]
      tool: README
      > (hashed) found
""")
async def a_sub_agent_is_whoever_can_start_none(desk: Desk) -> None:
    """No header names it. What it was told first does."""
    chat = in_a_hurry(desk)
    chat.user("a")
    (started,) = calls(await chat.ask('[agent {"prompt": "look"}]'))
    helper = Chat(desk, system="You look things up.", streams=True, rewrites=True)
    helper.user("look")
    (call,) = calls(await helper.ask('[bash {"command": "ls"}]'))
    helper.results((call, "README"))
    await helper.ask("found")
    chat.results((started, "found"))
    await chat.ask("b")


@qwen("""
    tools: bash agent
    system: You are an agent.
    user: a
    > [bash {"command": "ls"}]
      tool: README
      > b
""")
async def usage_and_empty_fields_of_streams_change_nothing(desk: Desk) -> None:
    chat = in_a_hurry(desk)
    chat.user("a")
    answer = await chat.ask('[bash {"command": "ls"}]', stream_options={"include_usage": True})
    answer["content"] = None
    chat.results((calls(answer)[0], "README"))
    await chat.ask("b", stream_options={"include_usage": True})


@qwen("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def a_stream_that_was_cut_is_asked_for_again(desk: Desk) -> None:
    chat = plain(desk, streams=True)
    chat.user("a")
    desk.will_say("b")
    async with desk.hold():
        first = asyncio.create_task(chat.send())
        await desk.holding.wait()
        first.cancel()
        second = asyncio.create_task(chat.send())
        await desk.attached(1)
    chat.keep(await second)
    chat.user("c")
    await chat.ask("d")


@opencode("""
    system: You are a title generator.
    user: a
    > A title
    tools: bash agent
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def the_title_is_asked_for_without_tools_and_stands_apart(desk: Desk) -> None:
    title = Chat(desk, system="You are a title generator.", tools=(), streams=True)
    chat = in_a_hurry(desk)
    title.user("a")
    chat.user("a")
    await asyncio.gather(title.ask("A title", to="title generator"), chat.ask("b", to="an agent"))
    chat.user("c")
    await chat.ask("d")


@opencode("""
    system: You are an agent.
    user: a
    > b
    system: You are an agent.
    user: look
    > (child) found
""")
async def a_session_with_a_parent_is_a_sub_agent(desk: Desk) -> None:
    chat = plain(desk, streams=True)
    chat.headers = {"x-session-id": "root"}
    chat.user("a")
    await chat.ask("b")
    child = plain(desk, streams=True)
    child.headers = {"x-session-id": "child", "x-parent-session-id": "root"}
    child.user("look")
    await child.ask("found")


@opencode("""
    tools: bash agent
    system: You are an agent.
    user: a
    > [bash {"command": "ls"}]
      tool: one\\ntwo
      > b
""")
async def results_may_be_lists_of_text(desk: Desk) -> None:
    chat = in_a_hurry(desk)
    chat.user("a")
    (call,) = calls(await chat.ask('[bash {"command": "ls"}]'))
    chat.results((call, [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]))
    await chat.ask("b")


@opencode("""
    system: You are an agent.
    system: Your folder is /app.
    user: a
    > b
""")
async def two_system_messages_and_a_developers_are_all_shown(desk: Desk) -> None:
    chat = plain(desk, streams=True)
    chat.messages.append({"role": "developer", "content": "Your folder is /app."})
    chat.user("a")
    await chat.ask("b")


@opencode("""
    tools: bash agent
    system: You are an agent.
    user: a
    > [bash {"command": "ls"}]
      tool: README
      > b
    system: You are an agent.
    user: a
    assistant: [bash {"command": "ls"}]
    tool: README
    > b
""")
async def other_tools_are_another_prompt(desk: Desk) -> None:
    """The last call of a run that is out of steps has none: to the template that is another beginning."""
    chat = in_a_hurry(desk)
    chat.user("a")
    (call,) = calls(await chat.ask('[bash {"command": "ls"}]'))
    chat.results((call, "README"))
    await chat.ask("b")
    chat.messages.pop()
    chat.tools = ()
    await chat.ask("b")


@opencode(f"""
    system: You are an agent.
    user: a
    > b
      user: {CONTINUE}
      > (summary) S
    system: You are an agent.
    user: What did we do so far?
    assistant: S
    user: c
    > d
""")
async def its_compaction_shows_the_summary_as_an_answer(desk: Desk) -> None:
    chat = plain(desk, streams=True)
    chat.user("a")
    await chat.ask("b")
    chat.user(CONTINUE)
    await chat.ask("S")
    summary = chat.messages[-1]
    anew = plain(desk, streams=True)
    anew.user("What did we do so far?")
    anew.messages.append(summary)
    anew.user("c")
    await anew.ask("d")


@opencode("""
    system: You are an agent.
    user: Write a summary of f.
    > b
""")
async def a_task_that_wants_a_summary_is_no_compaction(desk: Desk) -> None:
    chat = plain(desk, streams=True)
    chat.user("Write a summary of f.")
    await chat.ask("b")


cases = [*qwen, *opencode]

"""mini-swe-agent on Chat Completions: nothing is streamed, everything comes back to the letter."""

from __future__ import annotations

import pytest

from tests.rollout.gateway.corpus.case import Cases
from tests.rollout.gateway.corpus.chat_cases import plain
from tests.rollout.gateway.corpus.desk import MAX_LENGTH, Desk, Refused
from tests.rollout.gateway.corpus.openai_agents import Chat, calls

cases = Cases("mini-swe-agent")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > Look.\\n[bash {"command":  "ls"}]
      tool: README
      > b
""")
async def arguments_come_back_to_the_letter(desk: Desk) -> None:
    chat = Chat(desk)
    chat.user("a")
    answer = await chat.ask('Look.\\n[bash {"command":  "ls"}]')
    assert answer["tool_calls"][0]["function"]["arguments"] == '{"command":  "ls"}'
    chat.results((calls(answer)[0], "README"))
    await chat.ask("b")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: Your answer had no command.
      > c
""")
async def an_answer_without_a_call_is_complained_of(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    await chat.ask("b")
    chat.user("Your answer had no command.")
    await chat.ask("c")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def fields_that_a_client_library_adds_to_an_answer_change_nothing(desk: Desk) -> None:
    """LiteLLM sends back what it made of the answer: nulls, annotations, its own fields."""
    chat = plain(desk)
    chat.user("a")
    answer = await chat.ask("b")
    answer |= {"function_call": None, "annotations": [], "provider_specific_fields": {"refusal": None}, "audio": None}
    chat.messages[1] |= {"name": None, "cache_control": None}
    chat.user("c")
    await chat.ask("d", temperature=0.0, top_p=0.5)
    turns = desk.turns()
    assert [turn.asked for turn in turns[1:]] in ([], [{"temperature": 0.0, "top_p": 0.5}])  # the last may not be told yet


@cases("""
    system: You are an agent.
    user: a
    > b\\n
      user: c
      > d
""")
async def white_space_around_an_answer_may_go(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    (await chat.ask("b\\n"))["content"] = "b"
    chat.user("c")
    await chat.ask("d")


@cases("""
    system: You are an agent.
    user: one\\ntwo
    > b
      user: three
      user: four
      > d
""")
async def lists_of_content_are_joined_and_neighbours_are_not(desk: Desk) -> None:
    chat = plain(desk)
    chat.user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])
    await chat.ask("b")
    chat.user("three")
    chat.user("four")
    await chat.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def text_and_a_list_of_one_text_are_the_same(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    answer = await chat.ask("b")
    chat.messages[1]["content"] = [{"type": "text", "text": "a"}]
    answer["content"] = [{"type": "text", "text": "b"}]
    chat.user("c")
    await chat.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
""")
async def several_choices_are_refused_and_leave_no_turn(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    with pytest.raises(Refused, match=r"400.*n is 2"):
        await chat.send(n=2)
    await chat.ask("b")


@cases("""
    system: You are an agent.
    user: a
    > b
""")
async def a_prompt_that_is_too_long_is_told_in_openais_words(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    await chat.ask("b")
    chat.user("x" * MAX_LENGTH)
    with pytest.raises(Refused, match="context_length_exceeded"):
        await chat.send()


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "one"}]\\n[bash {"command": "two"}]
      tool: 1
      tool: 2
      > b
""")
async def results_of_two_calls_stand_in_their_order(desk: Desk) -> None:
    chat = Chat(desk)
    chat.user("a")
    one, two = calls(await chat.ask('[bash {"command": "one"}]\\n[bash {"command": "two"}]'))
    chat.results((two, "2"), (one, "1"))
    await chat.ask("b")


@cases("""
    system: You are an agent.
    user: a
    > b
    system: You are another agent.
    user: a
    > c
""")
async def another_system_message_is_another_root(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    await chat.ask("b")
    other = Chat(desk, system="You are another agent.", tools=())
    other.user("a")
    await other.ask("c")

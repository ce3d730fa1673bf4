"""What others lost tokens by, named by their issues, and what no harness was seen to do yet."""

from __future__ import annotations

import asyncio
import json

from tests.rollout.gateway.corpus.case import Cases
from tests.rollout.gateway.corpus.chat_cases import in_a_hurry, plain
from tests.rollout.gateway.corpus.claude import Claude
from tests.rollout.gateway.corpus.desk import Desk
from tests.rollout.gateway.corpus.openai_agents import calls

cases = Cases("generic")


@cases(r"""
    system: You are an agent.
    user: a
    > half of a character: \xc3
      user: c
      > d
""")
async def tokens_that_are_no_text_are_never_tokenised_again(desk: Desk) -> None:
    """trl#5224: what comes back is U+FFFD, three tokens where one was sampled."""
    chat = plain(desk)
    chat.user("a")
    answer = await chat.ask(r"half of a character: \xc3")
    assert answer["content"].endswith("\ufffd")
    chat.user("c")
    await chat.ask("d")


@cases("""
    tools: bash
    system: You are an agent.
    user: a
    > [bash {"command": "1"}]
      tool: one
      > [bash {"command": "2"}]
        tool: two
        > [bash {"command": "3"}]
          tool: three
          > done
""")
async def a_tool_loop_is_one_path_with_each_separator_once(desk: Desk) -> None:
    """verl#6501 lost the line's end after each turn; trl#5224 tokenised the loop again; vllm#27482 lost the tokens of streamed calls."""
    chat = in_a_hurry(desk, "bash")
    chat.user("a")
    for number, result in enumerate(("one", "two", "three"), start=1):
        (call,) = calls(await chat.ask(f'[bash {{"command": "{number}"}}]'))
        chat.results((call, result))
    await chat.ask("done")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def keys_in_another_order_and_white_space_between_them_change_nothing(desk: Desk) -> None:
    """rLLM's fingerprint is strict JSON: any edit of it begins a new conversation."""
    chat = plain(desk)
    chat.user("a")
    await chat.ask("b")
    chat.user("c")
    chat.messages = [dict(reversed(message.items())) for message in chat.messages]
    await chat.ask("d")
    assert list(chat.messages[0]) == ["content", "role"]


@cases("""
    system: You are an agent.
    user: a
    > one
      user: and
      > three
    system: You are an agent.
    user: b
    > two
""")
async def two_live_streams_of_one_execution_never_mix(desk: Desk) -> None:
    """hermes-agent#65991"""
    first, second = plain(desk, streams=True), plain(desk, streams=True)
    first.user("a")
    second.user("b")
    desk.will_say("one", to="user\na")
    desk.will_say("two", to="user\nb")
    async with desk.hold():
        tasks = [asyncio.create_task(chat.send()) for chat in (first, second)]
        await desk.holding.wait()
    answers = [(await task)["content"] for task in tasks]
    assert answers == ["one", "two"]
    first.keep({"role": "assistant", "content": "one"})
    first.user("and")
    await first.ask("three")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def a_retry_that_comes_when_the_answer_is_complete_gets_it(desk: Desk) -> None:
    """verifiers#2165: the answer is there, the first connection is gone, and nobody was told."""
    chat = plain(desk)
    chat.user("a")
    desk.will_say("b")
    async with desk.hold():
        first = asyncio.create_task(chat.send())
        await desk.holding.wait()
        first.cancel()
    while not desk.turns():
        await asyncio.sleep(0.001)
    chat.keep(await chat.send())
    chat.user("c")
    await chat.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > before and after
      user: c
      > d
""")
async def weights_that_change_within_a_turn_are_told_token_by_token(desk: Desk) -> None:
    """slime#2092 mixed versions without a mark."""
    chat = plain(desk)
    desk.versions = (3,) * 7 + (4,)
    chat.user("a")
    await chat.ask("before and after")
    desk.versions = (4,)
    chat.user("c")
    await chat.ask("d")
    while len(desk.turns()) < 2:
        await asyncio.sleep(0.001)
    first, second = desk.turns()
    assert list(first.versions) == [3] * 7 + [4] * (len("before and after") + 1 - 7)
    assert list(second.versions) == [4, 4]


@cases("""
    system: You are an agent.
    user: a
    > new
""")
async def another_attempt_begins_without_the_turns_of_the_first(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    await chat.ask("old")
    await desk.begin_anew()
    chat.messages.pop()
    await chat.ask("new")


@cases("""
    system: You are an agent.
    user: a
    >
      user: c
      > d
""")
async def an_empty_answer_is_a_turn(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    answer = await chat.ask("")
    assert answer["content"] == ""
    chat.user("c")
    await chat.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > one<|im_start|>two
      user: c
      > d
""")
async def a_special_token_in_an_answer_is_not_shown_and_stays_sampled(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    answer = await chat.ask("one<|im_start|>two")
    assert answer["content"] == "onetwo"
    chat.user("c")
    await chat.ask("d")


@cases("""
    system: You are an agent.
    user: e\u0301 and é
    > e\u0301 and é
      user: c
      > d
""")
async def characters_that_look_alike_stay_what_they_were(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("e\u0301 and é")
    assert (await chat.ask("e\u0301 and é"))["content"] == "e\u0301 and é"
    chat.user("c")
    await chat.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
        user: e
        > f
      user: C
      > D
""")
async def a_history_that_was_changed_and_changed_back_goes_on_where_it_was(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    await chat.ask("b")
    chat.user("c")
    await chat.ask("d")
    before = list(chat.messages)
    chat.messages = before[:3]
    chat.user("C")
    await chat.ask("D")
    chat.messages = before
    chat.user("e")
    await chat.ask("f")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
    system: You are an agent.
    user: c
    assistant: d
    user: e
    > f
""")
async def a_window_that_slides_begins_anew_with_its_answers_as_context(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    await chat.ask("b")
    chat.user("c")
    await chat.ask("d")
    del chat.messages[1:3]
    chat.user("e")
    await chat.ask("f")


@cases("""
    system: You are an agent.
    user: a
    > b
      > c
""")
async def an_answer_may_be_asked_for_behind_an_answer(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    await chat.ask("b")
    await chat.ask("c")


@cases("""
    system: You are an agent.
    user: a
    >> lon
    system: You are an agent.
    user: a
    > longer
""")
async def the_same_messages_with_more_room_are_another_request(desk: Desk) -> None:
    chat = plain(desk)
    chat.user("a")
    await chat.ask("longer", max_tokens=3)
    chat.messages.pop()
    await chat.ask("longer", max_tokens=100)


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def an_execution_may_speak_two_wires(desk: Desk) -> None:
    """What it says is what counts."""
    chat = plain(desk)
    chat.user("a")
    await chat.ask("b")
    claude = Claude(desk, tools=())
    claude.messages = [message for message in json.loads(json.dumps(chat.messages)) if message["role"] != "system"]
    claude.user("c")
    await claude.ask("d")

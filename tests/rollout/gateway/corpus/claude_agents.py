"""Claude Code's sub-agents and compactions."""

from __future__ import annotations

import asyncio
import copy

import pytest

from tests.rollout.gateway.corpus.case import Cases
from tests.rollout.gateway.corpus.claude import Claude, calls
from tests.rollout.gateway.corpus.claude_cases import plain
from tests.rollout.gateway.corpus.desk import MAX_LENGTH, Desk, Refused
from tidemill_rollout.harness import claude_code

cases = Cases("claude-code")

COMPACT = f"Now write {claude_code.SUMMARY}."
"""What tells a compaction, in other words."""


@cases("""
    tools: agent
    system: You are an agent.
    user: a
    > [agent {"prompt": "look"}]
      tool: found
      > b
    system: You look things up.
    user: look
    > (a1) found
""")
async def a_sub_agent_has_a_root_of_its_own_and_main_waits_for_it(desk: Desk) -> None:
    claude = Claude(desk, tools=("agent",))
    claude.user("a")
    (call,) = calls(await claude.ask('[agent {"prompt": "look"}]'))
    helper = plain(desk, agent="a1", system=["You look things up."])
    helper.user("look")
    await helper.ask("found")
    claude.results((call, "found"))
    await claude.ask("b")


@cases("""
    tools: agent
    system: You are an agent.
    user: a
    > [agent {"prompt": "look"}]
      tool: started
      > waiting
        user: <task-notification>a1: found</task-notification>
        > b
    system: You look things up.
    user: look
    > (a1) going
      user: on
      > (a1) found
""")
async def a_background_agent_works_while_main_goes_on(desk: Desk) -> None:
    claude = Claude(desk, tools=("agent",))
    claude.user("a")
    (call,) = calls(await claude.ask('[agent {"prompt": "look"}]'))
    helper = plain(desk, agent="a1", system=["You look things up."])
    helper.user("look")
    claude.results((call, "started"))
    await asyncio.gather(helper.ask("going", to="You look"), claude.ask("waiting", to="started"))
    helper.user("on")
    await helper.ask("found")
    claude.user("<task-notification>a1: found</task-notification>")
    await claude.ask("b")


@cases("""
    system: You are an agent.
    user: a
    > b
    system: one
    user: look
    > (a1) c
    system: two
    user: look closer
    > (a2 of a1) d
""")
async def an_agent_of_an_agent_names_both(desk: Desk) -> None:
    for agent, parent, system, text, answer in (
        ("", "", "You are an agent.", "a", "b"),
        ("a1", "", "one", "look", "c"),
        ("a2", "a1", "two", "look closer", "d"),
    ):
        one = plain(desk, agent=agent, parent=parent, system=[system])
        one.user(text)
        await one.ask(answer)


@cases("""
    system: You look things up.
    user: look
    > (a1) one
      user: more
      > (a1) three
    system: You look things up.
    user: look
    > (a2) two
      user: more
      > (a2) four
""")
async def agents_with_the_same_words_keep_to_their_own_branches(desk: Desk) -> None:
    """Their first calls are equal to the letter, and both run at once. What each goes on with is its own answer."""
    helpers = [plain(desk, agent=name, system=["You look things up."], thinking=False) for name in ("a1", "a2")]
    for helper, answer in zip(helpers, ("one", "two"), strict=True):
        helper.user("look")
        await helper.ask(answer)
        helper.user("more")
    for helper, answer in zip(helpers, ("three", "four"), strict=True):
        await helper.ask(answer)


@cases(f"""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
      user: c\\n{COMPACT}
      > (summary) S
    system: You are an agent.
    user: We talked: S
    assistant: d
    user: e
    system: note
    > f
      user: g
      > h
""")
async def a_compaction_forks_before_the_head_and_begins_anew_with_the_last_turn_verbatim(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("b")
    claude.user("c")
    await claude.ask("d")
    compacting = plain(desk, messages=copy.deepcopy(claude.messages[:-1]))
    compacting.messages[-1]["content"].append({"type": "text", "text": COMPACT})
    await compacting.ask("S")
    last = claude.messages[-1]
    claude.messages, claude.sent = [], set()
    claude.user("We talked: S")
    claude.messages.append(last)
    claude.user("e")
    claude.note("note")
    await claude.ask("f")
    claude.user("g")
    await claude.ask("h")


@cases(f"""
    system: You are an agent.
    user: a
    > b
      user: {COMPACT}
      > (summary) S
    system: You are an agent.
    user: We talked: S
    > c
""")
async def a_prompt_that_is_too_long_is_told_so_and_leads_to_a_compaction(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("b")
    claude.user("x" * MAX_LENGTH)
    with pytest.raises(Refused, match=r"invalid_request_error.*prompt is too long: \d+ tokens > \d+ maximum"):
        await claude.send()
    claude.messages.pop()
    claude.user(COMPACT)
    await claude.ask("S")
    claude.messages = []
    claude.user("We talked: S")
    await claude.ask("c")


@cases(f"""
    system: You look things up.
    user: look
    > (a1) one
      user: {COMPACT}
      > (a1, summary) S
    system: You look things up.
    user: We talked: S
    > (a1) two
""")
async def a_sub_agent_compacts_too(desk: Desk) -> None:
    helper = plain(desk, agent="a1", system=["You look things up."])
    helper.user("look")
    await helper.ask("one")
    helper.user(COMPACT)
    await helper.ask("S")
    helper.messages = []
    helper.user("We talked: S")
    await helper.ask("two")


@cases(f"""
    system: You are an agent.
    user: a
    > b
      user: {COMPACT}
      > (summary) S
      user: c
      > d
""")
async def a_compaction_that_is_given_up_leaves_the_conversation_where_it_was(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("b")
    compacting = plain(desk, messages=copy.deepcopy(claude.messages))
    compacting.user(COMPACT)
    await compacting.ask("S")
    claude.user("c")
    await claude.ask("d")


@cases("""
    system: You are an agent.
    user: a
    > b
      user: c
      > d
""")
async def an_image_of_the_user_is_refused_and_the_conversation_goes_on(desk: Desk) -> None:
    claude = plain(desk)
    claude.user("a")
    await claude.ask("b")
    claude.messages.append({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]})
    with pytest.raises(Refused, match=r"400.*image"):
        await claude.send()
    claude.messages.pop()
    claude.user("c")
    await claude.ask("d")

"""Whatever a harness does to its history, in whatever order: each sampled token is in the tree once, and each agent goes on from its own."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rollout.gateway.corpus.claude import Claude
from tests.rollout.gateway.corpus.desk import Desk
from tidemill.trajectory.branches import Origin, origins
from tidemill.trajectory.tree import grow

_numbers = itertools.count()


@dataclass(frozen=True)
class Step:
    """What one agent does next."""

    agent: int
    kind: str
    back: int = 1  # turns of its history that it drops before


steps = st.builds(Step, st.integers(0, 2), st.sampled_from(["ask", "ask", "ask", "twice", "hang up", "edit", "again", "forget"]), st.integers(1, 2))


@pytest.mark.asyncio(loop_scope="package")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(steps, min_size=1, max_size=3, unique_by=lambda step: step.agent), min_size=1, max_size=5))
async def test_every_sampled_token_is_in_the_tree_once(one_desk: Desk, rounds: list[list[Step]]) -> None:
    await one_desk.begin(f"i{next(_numbers)}", "claude-code")
    agents = [Claude(one_desk, tools=(), agent=name, system=[f"You are {name or 'main'}."], thinking=bool(name)) for name in ("", "a1", "a2")]
    for together in rounds:
        async with one_desk.hold():  # until every retry has found its call
            tasks = [asyncio.create_task(_take(one_desk, agents[step.agent], step)) for step in together]
            await one_desk.attached(sum(step.kind in ("twice", "hang up") for step in together))
        await asyncio.gather(*tasks)
    turns = await one_desk.end()
    tree = grow(turns)
    assert all(node.parent is None or node.parent.turn.agent == node.turn.agent for node in tree.downward), "nobody goes on from another's answer"
    told = origins(tree)
    asked = {step.kind for together in rounds for step in together}
    if not asked & {"edit", "again", "forget"}:
        assert set(told.values()) <= {Origin.START, Origin.SUB_AGENT, Origin.GOES_ON}, "without edits there is one path an agent"


async def _take(desk: Desk, agent: Claude, step: Step) -> None:
    number = next(_numbers)
    if step.kind in ("edit", "again"):
        del agent.messages[max(0, len(agent.messages) - 2 * step.back) :]
    if step.kind == "forget":
        agent.messages.clear()
    if step.kind != "again" or not agent.messages:
        agent.user(f"question {number}")
    elif agent.messages[-1]["role"] == "assistant":  # the same words as before
        agent.user("once more")
    to = f"You are {agent.agent or 'main'}."
    desk.will_say(f"answer {number}", to)
    match step.kind:
        case "twice":
            blocks, same = await asyncio.gather(agent.send(), agent.send())
            assert blocks == same
        case "hang up":
            first = asyncio.create_task(agent.send())
            await desk.asked(to)
            first.cancel()
            blocks = await agent.send()
        case _:
            blocks = await agent.send()
    assert blocks[-1]["text"] == f"answer {number}"
    agent.keep(blocks)

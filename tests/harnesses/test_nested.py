"""Sub-agents of sub-agents: Claude Code as its registry has it starts two at once, one of which starts two more, each with tools in parallel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harnesses.agents import DONE, INSTRUCTION, LINES, tree_of
from tests.harnesses.script import Script, calls
from tests.harnesses.world import Outcome, Setting, work
from tests.rollout.gateway.world import text_of
from tidemill.trajectory.classes import LeafClass, leaf_class

pytestmark = pytest.mark.timeout(900)  # the first time it is installed

STARTED_BY = {"A": "", "B": "", "C": "A", "D": "A", "E": "D"}


def says() -> Script:
    def bash(*commands: str) -> tuple[tuple[str, dict[str, str]], ...]:
        return tuple(("Bash", {"command": command, "description": "Look"}) for command in commands)

    def helpers(of: str) -> tuple[tuple[str, dict[str, str]], ...]:
        return tuple(
            ("Agent", {"description": f"Helper {name}", "prompt": f"TASK-SUB-{name}: do your part", "subagent_type": "general-purpose"})
            for name, starter in STARTED_BY.items()
            if starter == of
        )

    def sub_agent(name: str) -> tuple[str, ...]:
        look = calls(f"{name} looks.", *bash("cat notes.txt", f"echo {name}"), thought=f"I am {name}.")
        delegate = (calls(f"{name} delegates.", *helpers(name)),) if helpers(name) else ()
        return look, *delegate, calls(f"{name} writes.", *bash(f"echo {name} > {name}.txt", "wc -l < notes.txt")), f"{name} is done."

    return Script(
        {
            "TASK-MAIN": (
                calls("I edit.", *bash("echo second line >> notes.txt", "pwd")),
                calls("I delegate.", *helpers(""), *bash("wc -w < notes.txt")),
                DONE,
            ),
            **{f"TASK-SUB-{name}": sub_agent(name) for name in STARTED_BY},
        }
    )


@pytest.mark.parametrize("version", ["2.1.220", "2.1.332"])
async def test_nested_sub_agents_are_paths_of_their_own_and_say_who_started_them(version: str, tmp_path: Path) -> None:
    script = says()
    done = await work(Setting("claude-code", INSTRUCTION, script, version=version), tmp_path)
    assert done.exit_code == 0, done.said
    assert DONE in done.said
    assert (done.work / "notes.txt").read_text() == LINES
    assert [(done.work / f"{name}.txt").read_text() for name in STARTED_BY] == [f"{name}\n" for name in STARTED_BY]
    done.check_tokens()
    assert done.tree == tree_of(script)
    agents = {name: _agent(done, name) for name in STARTED_BY}
    assert len({agent for agent, _ in agents.values()}) == len(STARTED_BY)
    assert {name: parent for name, (_, parent) in agents.items()} == {name: agents[by][0] if by else "" for name, by in STARTED_BY.items()}
    leaves = [turn for turn in done.turns if turn.id not in {other.parent for other in done.turns}]
    assert sorted(leaf_class(leaf) for leaf in leaves) == [LeafClass.MAIN, *[LeafClass.SUB_AGENT] * len(STARTED_BY)]


def _agent(done: Outcome, name: str) -> tuple[str, str]:
    """Its id, and that of who started it: the same in all of its turns."""
    [told] = {(turn.agent, turn.parent_agent) for turn in done.turns if re.search(rf"(^|\s){name} \w+\.", text_of(turn.sampled_ids))}
    return told

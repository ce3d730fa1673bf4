"""Each agent program as its registry has it does a whole task in the jail, and the tree is what the script says, token by token."""

from pathlib import Path

import pytest

from tests.harnesses.agents import AGENTS, DONE, INSTRUCTION, LINES, PRESETS, Agent, tree_of
from tests.harnesses.world import Setting, work

pytestmark = pytest.mark.timeout(900)  # the first time it is installed


@pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)
async def test_an_agent_does_its_task_and_every_sampled_token_is_in_the_tree_once(agent: Agent, tmp_path: Path) -> None:
    script = agent.script("/app")
    done = await work(Setting(agent.preset, INSTRUCTION, script, version=agent.version), tmp_path)
    assert done.exit_code == 0, done.said
    assert (done.work / "notes.txt").read_text() == LINES
    assert DONE in done.said
    done.check_tokens()
    assert done.tree == tree_of(script)
    assert done.attached == 0


@pytest.mark.parametrize("agent", PRESETS.values(), ids=PRESETS)
async def test_an_agent_of_an_image_is_found_on_its_path_and_does_the_same(agent: Agent, tmp_path: Path) -> None:
    script = agent.script(str(tmp_path / "work"))
    done = await work(Setting(agent.preset, INSTRUCTION, script, in_image=True), tmp_path)
    assert done.exit_code == 0, done.said
    assert (done.work / "notes.txt").read_text() == LINES
    done.check_tokens()
    assert done.tree == tree_of(script)

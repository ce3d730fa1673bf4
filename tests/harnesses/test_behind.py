"""What happens behind the gateway while an agent works: none of them notices."""

import asyncio
from pathlib import Path

import pytest

from tests.harnesses.agents import DONE, INSTRUCTION, LINES, PRESETS, Agent, tree_of
from tests.harnesses.world import Around, Setting, work
from tests.rollout.gateway.world import ScriptedEngine, until
from tidemill.wire.gateway import Drain

pytestmark = pytest.mark.timeout(900)  # the first time it is installed

PATIENCE_SECONDS = 90.0


async def trouble(around: Around) -> None:
    """A flip, then an engine that dies, then a gateway that is restarted: each in the middle of an answer, none in the same one."""
    one, other = around.engines["cell-1"], around.engines["cell-0"]
    await _answering(one)
    assert (await around.client.drain("cell-1", Drain(epoch=2))).moved_with_tokens == 1
    await _more_turns(around)
    await around.route("cell-1", epoch=3)
    asked = len(one.requests) + len(other.requests)
    one.cut_after = other.cut_after = 6
    await until(lambda: len(one.requests) + len(other.requests) > asked + 2, PATIENCE_SECONDS)
    one.cut_after = other.cut_after = None
    await _more_turns(around)
    await _answering(one, other)
    await around.restart()


async def _more_turns(around: Around) -> None:
    had = len(around.turns)
    await until(lambda: len(around.turns) > had, PATIENCE_SECONDS)


async def _answering(*engines: ScriptedEngine) -> None:
    """Return when one of these engines is in mid-answer, where it stays."""
    for engine in engines:
        engine.holding.clear()
        engine.hold_after = 4
    waiting = [asyncio.create_task(engine.holding.wait()) for engine in engines]
    done, _ = await asyncio.wait(waiting, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    assert done
    for engine, task in zip(engines, waiting, strict=True):
        engine.hold_after = None
        task.cancel()


@pytest.mark.parametrize("agent", PRESETS.values(), ids=PRESETS)
async def test_an_agent_does_not_notice_flips_dying_engines_and_a_restarted_gateway(agent: Agent, tmp_path: Path) -> None:
    script = agent.script("/app")
    done = await work(Setting(agent.preset, INSTRUCTION, script, cells=2), tmp_path, trouble)
    assert done.exit_code == 0, done.said
    assert DONE in done.said
    assert (done.work / "notes.txt").read_text() == LINES
    done.check_tokens()
    assert done.tree == tree_of(script)
    assert done.asked_by_harness == len(script.answers)
    assert any(len({piece.cell for piece in turn.pieces}) == 2 for turn in done.turns)

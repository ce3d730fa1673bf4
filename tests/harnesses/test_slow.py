"""Answers that take so long that they are passed on as they come: what then breaks, or stalls, is mended by the agent's own retry.

qwen-code is not among them: a break in a stream is its end, so it is never shown a part of an answer.
"""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.harnesses.agents import DONE, INSTRUCTION, LINES, PRESETS, tree_of
from tests.harnesses.proxy import PARTS, Break, How
from tests.harnesses.script import Script, calls
from tests.harnesses.world import SECONDS, Around, Setting, work
from tidemill_rollout.harness import codex, presets

pytestmark = pytest.mark.timeout(900)  # the first time it is installed

HOLD_SECONDS = 0.05
PULSE_SECONDS = 0.1
SLOW_SECONDS = 0.6
WATCHDOG_SECONDS = 3  # instead of 300 and more
PLACES = (1, 2, PARTS // 2, PARTS - 3, PARTS - 2, PARTS - 1)
"""The agent sees one piece less: the headers alone, one part of the body, half of it, ..., all but its last byte."""


async def slow(around: Around, answers: int = 3) -> None:
    """The first answers take long."""
    (engine,) = around.engines.values()
    engine.hold_after = 3
    for _ in range(answers):
        engine.go.clear()
        await asyncio.wait_for(engine.holding.wait(), 90)
        engine.holding.clear()
        await asyncio.sleep(SLOW_SECONDS)  # that it takes long is what this is about
        engine.go.set()
        await asyncio.sleep(0.01)
    engine.hold_after = None


def broken_off(call: int) -> Break | None:
    return {0: Break("cut", 4), 2: Break("end", 4)}.get(call)


def stalled(call: int) -> Break | None:
    return {0: Break("stall", 4, seconds=2 * SECONDS)}.get(call)


@pytest.mark.parametrize("preset", ["claude-code", "codex", "mini-swe-agent", "opencode"])
async def test_an_agent_asks_again_for_an_answer_that_broke_off_while_it_read(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _done(preset, Setting(preset, INSTRUCTION, PRESETS[preset].script("/app"), breaks=broken_off), tmp_path, monkeypatch)


@pytest.mark.parametrize("how", ["cut", "end"])
async def test_mini_swe_agent_asks_again_wherever_its_answer_broke_off(how: How, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers are no streams: of one that takes long it gets the body piece by piece, and half a body is no answer."""
    looks = tuple(calls(f"I look: {n}.", ("bash", {"command": "cat notes.txt"})) for n in range(2))
    script = Script({"TASK-MAIN": looks + PRESETS["mini-swe-agent"].says("/app")["TASK-MAIN"]})
    broken = {2 * n: Break(how, place) for n, place in enumerate(PLACES)}
    await _done("mini-swe-agent", Setting("mini-swe-agent", INSTRUCTION, script, breaks=broken.get), tmp_path, monkeypatch, len(PLACES))


async def test_codex_asks_again_for_an_answer_that_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its watchdog counts events. Without it, the stall would last longer than the agent may work."""
    monkeypatch.setattr(codex, "_HOUR", WATCHDOG_SECONDS * 1000)
    await _done("codex", Setting("codex", INSTRUCTION, PRESETS["codex"].script("/app"), breaks=stalled), tmp_path, monkeypatch)


async def _done(preset: str, setting: Setting, folder: Path, monkeypatch: pytest.MonkeyPatch, slow_answers: int = 3) -> None:
    monkeypatch.setitem(presets.PRESETS, preset, replace(presets.PRESETS[preset], hold_seconds=HOLD_SECONDS))
    done = await work(replace(setting, pulse_seconds=PULSE_SECONDS), folder, partial(slow, answers=slow_answers))
    assert done.exit_code == 0, done.said
    assert DONE in done.said
    assert (done.work / "notes.txt").read_text() == LINES
    done.check_tokens()
    assert done.tree == tree_of(setting.script)
    assert done.broken >= 1
    assert done.attached == done.asked - len(setting.script.answers)
    assert done.asked_by_harness == len(setting.script.answers) + done.broken

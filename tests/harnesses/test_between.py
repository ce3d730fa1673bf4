"""Every break there is between gateway and sandbox, with each agent as it is: none of them notices, and no token is sampled twice."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harnesses.agents import DONE, INSTRUCTION, LINES, PRESETS, Agent, tree_of
from tests.harnesses.proxy import PARTS, Break
from tests.harnesses.script import Script
from tests.harnesses.test_compaction import CASES, Compacting, setting_of
from tests.harnesses.world import SECONDS, Setting, work
from tidemill_rollout.sandbox import relay

pytestmark = pytest.mark.timeout(900)  # the first time it is installed

IDLE_SECONDS = 3.0
ANSWERS_BEFORE = 4  # the compaction
STALLS = (Break("stall", -1, 2 * SECONDS), Break("stall", 4, 2 * SECONDS))  # longer than the agent may work
BREAKS = (Break("reset"), *STALLS, *(Break(how, after) for after in range(PARTS) for how in ("cut", "end")))
"""Before its first byte, behind its last, and at each place between."""


def breaks_of(script: Script) -> Callable[[int], Break | None]:
    """All of them, shared out among the answers: each breaks so often in a row, then gets through."""
    in_a_row = math.ceil(len(BREAKS) / sum(len(said) for said in script.conversations.values()))

    def breaks(call: int) -> Break | None:
        turn, attempt = divmod(call, in_a_row + 1)
        position = turn * in_a_row + attempt
        return BREAKS[position] if attempt < in_a_row and position < len(BREAKS) else None

    return breaks


@pytest.fixture(autouse=True)
def _impatient_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes a gateway for gone after seconds, not a minute, and hardly waits before it asks again."""
    program = Path(relay.__file__).read_text()
    for line, quicker in (("IDLE_SECONDS = 60.0", f"IDLE_SECONDS = {IDLE_SECONDS}"), ("LONGEST_PAUSE_SECONDS = 1.0", "LONGEST_PAUSE_SECONDS = 0.05")):
        assert program.count(f"\n{line}\n") == 1
        program = program.replace(line, quicker)
    (tmp_path / "relay.py").write_text(program)
    monkeypatch.setattr(relay, "__file__", str(tmp_path / "relay.py"))


@pytest.mark.parametrize("agent", PRESETS.values(), ids=PRESETS)
async def test_an_agent_does_not_notice_what_breaks_on_the_way_to_the_gateway(agent: Agent, tmp_path: Path) -> None:
    script = agent.script("/app")
    done = await work(Setting(agent.preset, INSTRUCTION, script, breaks=breaks_of(script), pulse_seconds=0.5), tmp_path)
    assert done.exit_code == 0, done.said
    assert DONE in done.said
    assert (done.work / "notes.txt").read_text() == LINES
    done.check_tokens()
    assert done.tree == tree_of(script)
    assert done.broken == len(BREAKS)
    assert done.attached == done.asked - len(script.answers)  # every other call was a retry
    assert done.asked_by_harness == len(script.answers)


async def test_a_summary_that_is_no_stream_gets_through_as_well(tmp_path: Path) -> None:
    """qwen-code streams its answers, but not the summary of a compaction."""
    case = next(case for case in CASES if case.preset == "qwen-code")
    script = Compacting(case)
    at = range(ANSWERS_BEFORE, ANSWERS_BEFORE + len(BREAKS))
    setting = replace(setting_of(case, script), breaks=lambda call: BREAKS[at.index(call)] if call in at else None, pulse_seconds=0.5)
    done = await work(setting, tmp_path)
    assert done.exit_code == 0, done.said
    assert DONE in done.said
    done.check_tokens()
    assert done.tree == script.tree
    assert sum(part == "before" for part, _ in script.given) == ANSWERS_BEFORE
    assert (done.broken, done.attached, done.asked_by_harness) == (len(BREAKS), len(BREAKS), len(script.answers))

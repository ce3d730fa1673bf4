"""Every break there is between gateway and sandbox, with each agent as it is: none of them notices, and no token is sampled twice."""

from pathlib import Path

import pytest

from tests.harnesses.agents import DONE, INSTRUCTION, LINES, PRESETS, Agent, tree_of
from tests.harnesses.proxy import PARTS, Break
from tests.harnesses.world import SECONDS, Setting, work
from tidemill_rollout.sandbox import relay

pytestmark = pytest.mark.timeout(900)  # the first time it is installed

IN_A_ROW = 5
IDLE_SECONDS = 3.0
STALLS = (Break("stall", -1, 2 * SECONDS), Break("stall", 4, 2 * SECONDS))  # longer than the agent may work
BREAKS = (Break("reset"), *STALLS, *(Break(how, after) for after in range(PARTS) for how in ("cut", "end")))
"""No answer has more events: each place before, between and behind them is one where it breaks."""


def breaks(call: int) -> Break | None:
    """Some in a row for each answer, which then gets through, until all have been."""
    turn, attempt = divmod(call, IN_A_ROW + 1)
    position = turn * IN_A_ROW + attempt
    return BREAKS[position] if attempt < IN_A_ROW and position < len(BREAKS) else None


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
    done = await work(Setting(agent.preset, INSTRUCTION, script, breaks=breaks, pulse_seconds=0.5), tmp_path)
    assert done.exit_code == 0, done.said
    assert DONE in done.said
    assert (done.work / "notes.txt").read_text() == LINES
    done.check_tokens()
    assert done.tree == tree_of(script)
    assert done.broken >= min(len(BREAKS), IN_A_ROW * len(script.answers))
    assert done.attached == done.asked - len(script.answers)  # every other call was a retry

"""What a person sees: plain lines where there is no terminal, a panel where there is one."""

import io

from rich.console import Console

from tidemill.local.screen import cell_word, view_of
from tidemill.report.live import LineScreen, LiveScreen
from tidemill.wire.cell import CellKind, CellPhase, CellState, Flip, Role
from tidemill.wire.conductor import CellTide, JobPhase, Tide


def cell(phase: CellPhase, acknowledged: int, role: Role = Role.ROLLOUT) -> CellTide:
    flip = Flip("cell-0", Role.TRAINING, 2, 0.0, 1.5, {"drain": 0.5, "join": 1.0}, 3)
    state = CellState("cell-0", CellKind.CORE, 0, "http://x", phase, role, acknowledged, 8, policy_version=1, last_flip=flip)
    return CellTide("cell-0", 0, 8, Role.TRAINING, 2, state)


def tide(*cells: CellTide, condition: str = "") -> Tide:
    return Tide(1, "tiny", "Elastic", JobPhase.RUNNING, 3, 12, 1, 1, 24, 20, 10, 2, 1, cells, mean_score=0.5, condition=condition)


def test_one_word_says_what_a_cell_does() -> None:
    assert cell_word(CellTide("cell-0", 0, 8, Role.ROLLOUT, 1)) == "Starting"
    assert cell_word(cell(CellPhase.READY, 2, Role.TRAINING)) == "Training"
    assert cell_word(cell(CellPhase.READY, 1)) == "Flipping"
    assert cell_word(cell(CellPhase.FAILED, 1)) == "Failed"


def test_lines_say_step_water_and_roles() -> None:
    out = io.StringIO()
    screen = LineScreen(out)
    screen.show(view_of(tide(cell(CellPhase.READY, 2, Role.TRAINING), condition="the disk is full")))
    screen.show(view_of(tide(cell(CellPhase.READY, 2, Role.TRAINING), condition="the disk is full")))
    assert out.getvalue().count("\n") == 1
    for part in ("step 3/12", "water 14/0", "running 10", "score 0.50", "cell-0=Training", "! the disk is full"):
        assert part in out.getvalue()


def test_the_panel_shows_the_last_flip() -> None:
    out = io.StringIO()
    screen = LiveScreen(Console(file=out, width=110, force_terminal=True, color_system=None))
    screen.say("preparing model tiny:qwen3")
    screen.show(view_of(tide(cell(CellPhase.READY, 2, Role.TRAINING))))
    screen.close()
    for part in ("tidemill  tiny  Elastic", "3 / 12", "to Training in 1.5 s, 3 answers moved", "preparing model tiny:qwen3"):
        assert part in out.getvalue()

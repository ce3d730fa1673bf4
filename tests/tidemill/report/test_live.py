"""The live view, of what a cluster knows of a job."""

import io
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from tests.tidemill.report.terminal import Terminal
from tidemill.report.live import CellView, LineScreen, LiveScreen, View, clock, line, open_screen
from tidemill.telemetry import logs

VIEW = View(
    job="sail",
    mode="Elastic",
    step=3,
    steps=12,
    burst=2,
    policy_version=1,
    waterlevel=7,
    capacity=16,
    score=None,
    staleness=1,
    cells=(
        CellView("cell-0", "Training", 4, 1, "to Training in 8.5 s", node="gpu-3"),
        CellView("cell-1", "No pods", 3, -1, "", remarks="(cordoned)"),
    ),
    phase="Running",
    limited_by="Training: groups are ready",
    eta="3h20m",
    condition="Placed, Placing: [pod sail-cell-1-0] waits",
)


def drawn(view: View) -> str:
    out = io.StringIO()
    screen = LiveScreen(Console(file=out, width=110, force_terminal=True, color_system=None))
    screen.show(view)
    screen.close()
    return out.getvalue()


def test_a_line_has_what_a_program_would_look_for() -> None:
    assert line(VIEW) == (
        "Running step 3/12 burst 2 version 1 water 7/16 limited by Training score - eta 3h20m cell-0=Training cell-1=No-pods "
        "! Placed, Placing: [pod sail-cell-1-0] waits"
    )


def test_the_panel_shows_nodes_and_remarks_where_there_are_any() -> None:
    shown = drawn(VIEW)
    for part in ("3 / 12", "3h20m to go", "groups are ready", "gpu-3", "No pods (cordoned)", "[pod sail-cell-1-0] waits"):
        assert part in shown
    bare = drawn(replace(VIEW, cells=(replace(VIEW.cells[0], node=""),), condition=""))
    assert "node" not in bare
    assert "held back" not in bare


def test_the_clock_runs_before_there_is_a_reading() -> None:
    out = io.StringIO()
    screen = LiveScreen(Console(file=out, width=80, height=24, force_terminal=True, color_system=None))
    deadline = time.monotonic() + 10
    while "tidemill  0:01" not in out.getvalue():
        assert time.monotonic() < deadline, "the clock stands"
        time.sleep(0.05)
    screen.close()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Standard error, with the runner's log on it."""
    out, handlers = io.StringIO(), list(logging.root.handlers)
    monkeypatch.setattr(sys, "stderr", out)
    logs.start("runner", level=logging.WARNING)
    yield out
    logging.root.handlers[:] = handlers


def test_log_lines_and_readings_higher_than_the_terminal_leave_one_panel(terminal: io.StringIO) -> None:
    screen = LiveScreen(Console(file=terminal, width=80, height=24, force_terminal=True, color_system=None))
    path = "/a" * 60
    for number in range(12):
        screen.say(f"{number} in {path}")
        screen.show(replace(VIEW, cells=VIEW.cells * number, phase=str(number)))
        logging.getLogger("tidemill").warning("process ended, will be restarted")
        time.sleep(0.3)
    screen.close()
    seen = Terminal(80, 24)
    seen.feed(terminal.getvalue())
    assert seen.text().count("╭") == seen.text().count("╰") == 1
    assert " ".join(seen.text().split()).count("process ended, will be restarted") == 12
    last = seen.text().replace("\n", "").replace("│", "").replace(" ", "")
    assert f"11in{path}" in last, "in the end a path can be read whole"


def test_what_is_not_a_terminal_gets_lines() -> None:
    assert isinstance(open_screen(io.StringIO()), LineScreen)


def test_a_clock_shows_hours_when_there_are_any() -> None:
    assert [clock(seconds) for seconds in (0, 65.9, 3600, 360_005)] == ["0:00", "1:05", "1:00:00", "100:00:05"]

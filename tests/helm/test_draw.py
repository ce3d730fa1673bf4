"""The pictures for documents: every panel is in them, and they say what they are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib import pyplot

from helm.dashboards import job
from helm.dashboards.boards import BOARDS
from helm.dashboards.draw import LABEL, Series, draw
from helm.dashboards.panel import Row
from helm.dashboards.units import shown


def two_cells(expr: str) -> list[Series]:
    """A number that goes up and down between 1 and 5, of two cells; the second is away for a while."""
    waves = [tuple((float(at), 3 + 2 * math.sin(at / 40 + phase)) for at in range(0, 600, 5)) for phase in (0.0, 1.5)]
    gap = tuple((at, math.nan if 200 < at < 300 else value) for at, value in waves[1])
    return [Series({"cell": "cell-0", "job": "mill"}, waves[0]), Series({"cell": "cell-1", "job": "mill"}, gap)]


def texts(figure: pyplot.Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(pyplot.Text)]


@pytest.mark.parametrize("row", job.BOARD.rows, ids=lambda row: row.title)
def test_every_panel_of_a_row_is_drawn_and_the_picture_says_that_it_is_not_grafana(row: Row, tmp_path: Path) -> None:
    figure = draw(row, two_cells, 600.0, [("flips", "purple", [100.0])], "title")
    figure.savefig(tmp_path / "row.png")
    said = texts(figure)
    assert LABEL in said
    assert {panel.title for panel in row.panels} <= set(said)
    pyplot.close(figure)
    assert (tmp_path / "row.png").stat().st_size > 10_000


def test_a_panel_without_data_says_so_and_why() -> None:
    figure = draw(job.BOARD.rows[-1], lambda expr: [], 600.0, [], "title")
    assert "no data: needs a failure" in texts(figure)
    pyplot.close(figure)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.125, "percentunit", "12.5%"),
        (90.0, "s", "90 s"),
        (180.0, "s", "3 min"),
        (7200.0, "s", "2 h"),
        (3 * 2**30, "bytes", "3 GiB"),
        (512.0, "Bps", "512 B/s"),
        (12_000.0, "short", "12k"),
        (0.25, "short", "0.25"),
        (412.5, "watt", "412 W"),
    ],
)
def test_numbers_are_short_and_have_their_unit(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_every_unit_of_a_panel_is_known() -> None:
    assert {panel.unit for board in BOARDS for panel in board.panels} <= {"short", "percentunit", "s", "bytes", "Bps", "reqps", "watt", "celsius"}

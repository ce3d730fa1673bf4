"""Several runs beside each other: every part is drawn when it is there and left out when it is not."""

from pathlib import Path

from tests.tidemill.simulate.jobs import COSTS, even, setup
from tidemill.report.comparison import Bar, Pages, Plot, Series, draw_page, write_page
from tidemill.report.story import tell
from tidemill.simulate.job import Job
from tidemill.simulate.recorder import Recording


def pages() -> Pages:
    found = Job(setup(), even(12), COSTS, Recording("small")).run()
    story = tell(found.events, found.seconds)
    assert story is not None
    plot = Plot("Hours by <cells>", "cells", "hours", (Series("Elastic", [(2, 3.0), (3, 2.0)]), Series("Async", [(2, 4.0), (3, 2.5)])))
    return Pages("small, simulated", ("Choose <Elastic>.",), (Bar("Elastic", 2.0), Bar("Async (1 train)", 2.5)), (story,), (plot,))


def test_a_page_shows_bars_plots_roles_and_waterlevels_and_escapes_what_it_shows(tmp_path: Path) -> None:
    write_page(pages(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    for expected in ("Choose &lt;Elastic&gt;.", "Hours by &lt;cells&gt;", "Async (1 train)", "2.5 h", "cell-2", "rollout capacity"):
        assert expected in text
    assert "<cells>" not in text


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    write_page(Pages("bare", ()), tmp_path / "page.html")
    assert "<svg" not in (tmp_path / "page.html").read_text()


def test_a_picture_has_a_row_for_each_part(tmp_path: Path) -> None:
    """Its height grows with what is drawn."""

    def height(what: Pages) -> int:
        draw_page(what, tmp_path / "page.png")
        return int.from_bytes((tmp_path / "page.png").read_bytes()[20:24])

    whole = pages()
    assert height(whole) > height(Pages("bars", (), whole.bars)) > 0

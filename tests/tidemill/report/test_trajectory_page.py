import re
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, settings

from tests.tidemill.report.trajectories import WHOLE
from tests.tidemill.trajectory.forests import forests
from tidemill.report.strands import Rule, picture
from tidemill.report.trajectory_page import page, write_page
from tidemill.trajectory.records import FORMAT_VERSION, Trajectory, Turn

VOID = {"meta"}


class Balanced(HTMLParser):
    """Every element is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return parser


def test_the_page_is_one_whole_file_that_needs_nothing_else(tmp_path: Path) -> None:
    write_page(picture(WHOLE, Rule(5, 1)), tmp_path / "out.html")
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    html = (tmp_path / "out.html").read_text()
    assert not re.search(r"(src|href)=|https?://|<script", html)
    seen = parsed(html).seen
    runs = 9 + 1  # one call was sampled on two cells
    assert seen.count("rect") == 9 + runs
    assert seen.count("path") == 3, "what forks is joined with where it forks from"
    assert "sub-agent deeper of look&lt;up&gt;" in html
    assert "t2: 1 tokens sampled on cell-1, version 4" in html


def test_what_is_not_drawn_is_pale_and_without_the_job_nobody_says_so() -> None:
    assert page(picture(WHOLE, Rule(5, 1))).count('class="pale"><title>') == 2, "both sub-agents"
    unknown = page(picture(WHOLE, None))
    assert 'class="pale"' not in unknown
    assert "<th>drawn" not in unknown


@settings(max_examples=30)
@given(forests())
def test_any_trajectory_can_be_drawn_and_stays_within_its_frame(turns: list[Turn]) -> None:
    html = page(picture(Trajectory(FORMAT_VERSION, "g1-0", 1, "any", 1, 0, None, tuple(turns)), Rule(5, 1)))
    parsed(html)
    for x, width in re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', html):
        assert 190 <= float(x) <= float(x) + float(width) <= 960

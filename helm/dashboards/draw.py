"""`python -m helm.dashboards.draw http://127.0.0.1:9090 docs/img`: draw the *Job* board's panels from what a Prometheus has recorded.

For documents, where there is no Grafana. The pictures say that they are drawn by this and not by Grafana.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MultipleLocator

from helm.dashboards import job
from helm.dashboards.boards import filled
from helm.dashboards.panel import Panel, Row, Shape
from helm.dashboards.units import shown

LABEL = "drawn by helm/dashboards/draw.py from recorded Prometheus data; this is not Grafana"
POINTS = 600
UNIT_INCHES = (0.52, 0.36)  # of the board's grid: 24 units make the width
LEGEND_LINES = 3
TICKS = (10, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
DARK, FAINT = "#22252b", "#e4e7ed"
COLORS = {"green": "#56a64b", "red": "#e02f44", "orange": "#ff9830", "blue": "#3274d9", "purple": "#a352cc"}
CYCLE = ("#3274d9", "#ff9830", "#56a64b", "#e02f44", "#a352cc", "#1f9c94", "#8e8e8e", "#c4a000", "#6b4c9a")
ANNOTATIONS = (
    ("flips", "sum(changes(tidemill_cell_granted_epoch[{interval}])) > 0", "#a352cc"),
    ("publications", "sum(changes(tidemill_policy_version[{interval}])) > 0", "#3274d9"),
)


@dataclass(frozen=True, slots=True)
class Series:
    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]  # seconds since the start, value; NaN: none

    def called(self, legend: str) -> str:
        text = re.sub(r"\{\{(\w+)\}\}", lambda found: self.labels.get(found[1], ""), legend)
        return text or ", ".join(self.labels.values()) or "value"


type Ask = Callable[[str], list[Series]]


def draw(row: Row, ask: Ask, seconds: float, marks: Sequence[tuple[str, str, Sequence[float]]], title: str) -> Figure:
    """One row of the board, its panels as wide and high as there. `marks` are names, colours and times of annotations."""
    places = _places(row.panels)
    height = max(y + panel.height for panel, _, y in places)
    size = (24 * UNIT_INCHES[0], height * UNIT_INCHES[1] + 0.8)
    figure = pyplot.figure(figsize=size, facecolor="white")
    figure.text(0.012, 1 - 0.32 / size[1], title, fontsize=13, fontweight="bold", color=DARK)
    figure.text(0.012, 1 - 0.56 / size[1], LABEL, fontsize=8, color="#c4162a")
    for panel, x, y in places:
        top = 1 - (0.72 + y * UNIT_INCHES[1]) / size[1]
        box = (
            x / 24 + 0.005,
            top - panel.height * UNIT_INCHES[1] / size[1] + 0.006,
            panel.width / 24 - 0.01,
            panel.height * UNIT_INCHES[1] / size[1] - 0.012,
        )
        figure.add_artist(Rectangle(box[:2], box[2], box[3], transform=figure.transFigure, fill=False, edgecolor=FAINT))
        figure.text(box[0] + 0.006, box[1] + box[3] - 0.17 / size[1], panel.title, fontsize=8.5, fontweight="bold", color=DARK, va="center")
        _panel(figure, panel, box, size, ask, seconds, marks)
    return figure


def _panel(
    figure: Figure,
    panel: Panel,
    box: tuple[float, float, float, float],
    size: tuple[float, float],
    ask: Ask,
    seconds: float,
    marks: Sequence[tuple[str, str, Sequence[float]]],
) -> None:
    found = [(one.called(query.legend), one) for query in panel.queries for one in ask(query.expr)]
    left, bottom, top = 0.62 / size[0], 0.74 / size[1], 0.34 / size[1]
    if panel.shape is Shape.STAT:
        _stat(figure, panel, box, found)
        return
    if panel.shape is Shape.TIMELINE:
        left = 0.75 / size[0]
    axes = figure.add_axes((box[0] + left, box[1] + bottom, box[2] - left - 0.012, box[3] - bottom - top))
    axes.set_xlim(0, seconds)
    axes.tick_params(labelsize=7, colors="#666", length=2)
    axes.xaxis.set_major_locator(MultipleLocator(next((step for step in TICKS if seconds / step <= 6), TICKS[-1])))
    axes.xaxis.set_major_formatter(lambda value, _: shown(value, "s") if value else "0")
    for side in axes.spines.values():
        side.set_visible(False)
    if not any(not math.isnan(value) for _, one in found for _, value in one.points):
        axes.text(0.5, 0.5, f"no data{f': {panel.empty}' if panel.empty else ''}", transform=axes.transAxes, ha="center", fontsize=8, color="#888")
        axes.set_yticks([])
        return
    for _, color, times in marks:
        axes.vlines(times, 0, 1, transform=axes.get_xaxis_transform(), color=color, linewidth=0.5, alpha=0.35)
    if panel.shape is Shape.TIMELINE:
        _timeline(axes, panel, found)
    else:
        _curves(axes, panel, found)


def _stat(figure: Figure, panel: Panel, box: tuple[float, float, float, float], found: list[tuple[str, Series]]) -> None:
    values = [value for _, one in found for _, value in one.points[-1:] if not math.isnan(value)]
    if not values:
        text, color = "no data", "#888"
    else:
        state = next((state for state in panel.states if state.value == values[0]), None)
        text = state.text if state is not None else shown(values[0], panel.unit)
        reached = [name for least, name in panel.thresholds if values[0] >= least]
        color = COLORS.get(state.color if state is not None else (reached[-1] if reached else "green" if panel.thresholds else DARK), DARK)
    figure.text(box[0] + box[2] / 2, box[1] + box[3] * 0.42, text, fontsize=19, fontweight="bold", color=color, ha="center", va="center")


def _timeline(axes: Axes, panel: Panel, found: list[tuple[str, Series]]) -> None:
    colors = {state.value: COLORS.get(state.color, state.color) for state in panel.states}
    found = sorted(found, key=lambda pair: pair[0], reverse=True)
    for place, (_, one) in enumerate(found):
        for (start, value), (end, _) in pairwise(one.points):
            if not math.isnan(value):
                axes.barh(place, end - start, left=start, height=0.72, color=colors.get(round(value), "#ccc"), linewidth=0)
    axes.set_yticks(range(len(found)), [name for name, _ in found])
    used = {round(value) for _, one in found for _, value in one.points if not math.isnan(value)}
    _legend(axes, [(state.text, colors[state.value]) for state in panel.states if state.value in used])


def _curves(axes: Axes, panel: Panel, found: list[tuple[str, Series]]) -> None:
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, panel.unit))
    colors = [CYCLE[index % len(CYCLE)] for index in range(len(found))]
    if panel.shape is Shape.STACKED:
        times = sorted({at for _, one in found for at, _ in one.points})
        values = [dict(one.points) for _, one in found]
        axes.stackplot(times, [[_none_as_zero(of_one.get(at, 0.0)) for at in times] for of_one in values], colors=colors, alpha=0.75, linewidth=0)
    else:
        for (_, one), color in zip(found, colors, strict=True):
            axes.plot([at for at, _ in one.points], [value for _, value in one.points], color=color, linewidth=1.3)
    if panel.minimum is not None:
        axes.set_ylim(bottom=panel.minimum)
    if not any(_moves(one) for _, one in found):
        axes.set_ylim(0, 1)
    named = [(name, color, one) for (name, one), color in zip(found, colors, strict=True)]
    if panel.shape is Shape.STACKED:  # the largest first: where there is no room for all, the smallest are left out
        named = sorted((entry for entry in named if _moves(entry[2])), key=lambda entry: -sum(_none_as_zero(value) for _, value in entry[2].points))
    _legend(axes, [(name, color) for name, color, _ in named] or [("all 0", "white")])


def _legend(axes: Axes, entries: list[tuple[str, str]]) -> None:
    """As many as fit below the axes."""
    room = 330 * axes.get_position().width  # characters
    columns = max(1, min(len(entries), int(room / (max(len(name) for name, _ in entries) + 4))))
    places = LEGEND_LINES * columns
    handles = [Patch(color=color, label=name) for name, color in (entries if len(entries) <= places else entries[: places - 1])]
    if len(handles) < len(entries):
        handles.append(Patch(color="white", label=f"and {len(entries) - len(handles)} more"))
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=columns,
        fontsize=6.5,
        frameon=False,
        handlelength=0.9,
        handleheight=0.7,
        columnspacing=1.0,
        labelcolor="#444",
    )


def _places(panels: Sequence[Panel]) -> list[tuple[Panel, int, int]]:
    """As Grafana lays them out: beside each other, then below."""
    found, x, y, highest = [], 0, 0, 0
    for panel in panels:
        if x + panel.width > 24:
            x, y, highest = 0, y + highest, 0
        found.append((panel, x, y))
        x, highest = x + panel.width, max(highest, panel.height)
    return found


def _moves(one: Series) -> bool:
    return any(value and not math.isnan(value) for _, value in one.points)


def _none_as_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def asking(url: str, start: float, end: float, interval: str, chosen: dict[str, str]) -> Ask:
    """Range queries, one point for each step, NaN where there is none."""
    step = max(1.0, (end - start) / POINTS)

    def ask(expr: str) -> list[Series]:
        parameters = {"query": filled(expr, interval, **chosen), "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        with urllib.request.urlopen(f"{url}/api/v1/query_range?{urllib.parse.urlencode(parameters)}", timeout=60) as answer:
            told = json.loads(answer.read())["data"]["result"]
        return [Series(one["metric"], _with_gaps([(float(t), float(v)) for t, v in one["values"]], start, step)) for one in told]

    return ask


def _with_gaps(samples: list[tuple[float, float]], start: float, step: float) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float, float]] = []
    for at, value in samples:
        if points and at - start - points[-1][0] > 1.5 * step:
            points.append((points[-1][0] + step, math.nan))
        points.append((at - start, value))
    return tuple(points)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m helm.dashboards.draw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a Prometheus that has scraped a job")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--end", type=float, default=time.time(), help="unix seconds (default: now)")
    parser.add_argument("--minutes", type=float, default=60.0, help="how much before the end (default: %(default)g)")
    parser.add_argument("--interval", default="1m", help="window of rates, at least four scrapes (default: %(default)s)")
    parser.add_argument("--job", default=".*", help="which job, where there are several")
    given = parser.parse_args()
    ask = asking(given.url.rstrip("/"), given.end - 60 * given.minutes, given.end, given.interval, {"job": given.job})
    marks = [
        (name, color, [at for one in ask(expr.format(interval=given.interval)) for at, _ in _starts(one.points)]) for name, expr, color in ANNOTATIONS
    ]
    given.folder.mkdir(parents=True, exist_ok=True)
    now, tide, *others = job.BOARD.rows
    for row in (Row("Now, and the tide", now.panels + tide.panels), *others):
        figure = draw(row, ask, 60 * given.minutes, marks, f"Tidemill / Job: {row.title}")
        file = given.folder / f"job-{re.sub('[^a-z]+', '-', row.title.lower())}.png"
        figure.savefig(file, dpi=110)
        pyplot.close(figure)
        print(file)
    return 0


def _starts(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Where a run of samples begins: an annotation at each sample would be a wall."""
    steps = [after - before for (before, _), (after, _) in pairwise(points)]
    width = 1.5 * min(steps, default=0.0)
    return [point for place, point in enumerate(points) if place == 0 or point[0] - points[place - 1][0] > width]


if __name__ == "__main__":
    sys.exit(main())

"""Several runs of one job beside each other: a page of bars, roles and waterlevels, plots of a sweep or a frontier, and the same as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tidemill.report import chart
from tidemill.report.page import STYLE
from tidemill.report.story import Story
from tidemill.report.timeline import draw_roles, draw_water

SERIES_COLOURS = ("#2a9fd6", "#e8a33d", "#b455c9", "#3f9d4f", "#c9504a", "#6b7a90")


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    hours: float


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: chart.Points  # x, y


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    x: str
    y: str
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Pages:
    """What is drawn. Parts that are empty are left out."""

    title: str
    advice: tuple[str, ...]
    bars: tuple[Bar, ...] = ()
    stories: tuple[Story, ...] = ()
    plots: tuple[Plot, ...] = ()


def write_page(pages: Pages, file: Path) -> None:
    """One self-contained file; it appears whole or not at all."""
    body = [f"<h1>{escape(pages.title)}</h1>", *(f"<p>{escape(line)}</p>" for line in pages.advice)]
    if pages.bars:
        body += ["<h2>Hours</h2>", _bars(pages.bars)]
    for plot in pages.plots:
        body += [f"<h2>{escape(plot.title)}</h2>", _plot(plot)]
    for story in pages.stories:
        axis = chart.Axis(story.seconds)
        body += [
            f"<h2>{escape(story.mode)}: what each cell did, and the waterlevel</h2>",
            chart.timeline(axis, story.cells, story.spans, story.publications),
            chart.steps(axis, story.waterlevel, story.capacity, "waterlevel", "rollout capacity", story.publications),
        ]
    legend = "".join(f'<i style="background:{colour}"></i>{kind}' for kind, colour in chart.COLOURS.items())
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(pages.title)} - tidemill</title><style>{STYLE}</style></head><body>{''.join(body)}"
        f"{f'<p class=soft>{legend}</p>' if pages.stories else ''}</body></html>"
    )
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text)
    os.replace(partial, file)


def draw_page(pages: Pages, file: Path) -> None:
    """The same as one picture."""
    import matplotlib  # imported here: it takes half a second that only this function needs

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = bool(pages.bars) + len(pages.plots) + 2 * len(pages.stories)
    figure, all_axes = pyplot.subplots(max(1, rows), 1, figsize=(11, 2.6 * max(1, rows) + 0.6), squeeze=False)
    axes = iter(all_axes[:, 0])
    if pages.bars:
        here = next(axes)
        here.barh([b.label for b in pages.bars], [b.hours for b in pages.bars], color=SERIES_COLOURS[0])
        here.invert_yaxis()
        here.set_xlabel("hours")
    for plot in pages.plots:
        here = next(axes)
        for number, series in enumerate(plot.series):
            here.plot(*zip(*series.points, strict=True), "o-", color=SERIES_COLOURS[number % len(SERIES_COLOURS)], label=series.label)
        here.set(title=plot.title, xlabel=plot.x, ylabel=plot.y, ylim=(0, None))
        here.legend(frameon=False)
    for story in pages.stories:
        roles, water = next(axes), next(axes)
        draw_roles(story, roles, 3600)
        roles.set_title(story.mode)
        roles.legend(loc="upper right", fontsize="small")
        draw_water(story, water, 3600)
        water.set_xlabel("hours")
    figure.suptitle(pages.title, x=0.02, ha="left", fontsize=11)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.2 / figure.get_figheight()))
    partial = file.with_name(f".{file.name}.partial")
    figure.savefig(partial, dpi=110, format="png")
    pyplot.close(figure)
    os.replace(partial, file)


def _bars(bars: Sequence[Bar]) -> str:
    height, longest = 30, max(b.hours for b in bars) or 1.0
    parts = [f'<svg viewBox="0 0 {chart.WIDTH} {height * len(bars) + 8}" role="img" xmlns="http://www.w3.org/2000/svg">']
    for index, bar in enumerate(bars):
        y, width = index * height + 4, (chart.WIDTH - 260) * bar.hours / longest
        parts.append(f'<text x="170" y="{y + 16}" text-anchor="end">{escape(bar.label)}</text>')
        parts.append(f'<rect x="180" y="{y}" width="{width:.1f}" height="20" rx="2" fill="{SERIES_COLOURS[0]}"/>')
        parts.append(f'<text x="{186 + width:.1f}" y="{y + 16}">{bar.hours:.3g} h</text>')
    return "".join([*parts, "</svg>"])


def _plot(plot: Plot) -> str:
    """Lines through dots. Both axes begin at 0, so that differences show as large as they are."""
    total, base, top, left, right = 320, 280.0, 24.0, chart.LEFT, chart.WIDTH - chart.RIGHT
    everything = [p for s in plot.series for p in s.points]
    widest, highest = max((x for x, _ in everything), default=1.0) or 1.0, max((y for _, y in everything), default=1.0) or 1.0
    parts = [f'<svg viewBox="0 0 {chart.WIDTH} {total}" role="img" xmlns="http://www.w3.org/2000/svg">']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y, x = base - (base - top) * share, left + (right - left) * share
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 10}" y="{y + 4:.1f}" text-anchor="end">{highest * share:.3g}</text>')
        parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{widest * share:.3g}</text>')
    for number, series in enumerate(plot.series):
        colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        at = [(left + (right - left) * x / widest, base - (base - top) * y / highest) for x, y in series.points]
        parts.append(f'<path fill="none" stroke="{colour}" stroke-width="1.8" d="M{" L".join(f"{x:.1f},{y:.1f}" for x, y in at)}"/>')
        parts += [
            f'<circle style="fill:{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(series.label)}: {px:.3g}, {py:.3g}</title></circle>'
            for (x, y), (px, py) in zip(at, series.points, strict=True)
        ]
        parts.append(f'<text x="{left + 8 + 190 * number}" y="14"><tspan style="fill:{colour}">&#9679;</tspan> {escape(series.label)}</text>')
    parts.append(
        f'<text x="{right}" y="{base + 36}" text-anchor="end">{escape(plot.x)}</text><text x="4" y="{top - 8}">{escape(plot.y)}</text></svg>'
    )
    return "".join(parts)

"""`timeline.png`: roles of the cells above the waterlevel, for slides and chat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.report.chart import COLOURS
from tidemill.report.story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_timeline(story: Story, file: Path) -> None:
    """Write the picture; it appears whole or not at all."""
    import matplotlib  # imported here: it takes half a second that only this function needs

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (roles, water) = pyplot.subplots(
        2, 1, sharex=True, figsize=(11, 1.8 + 0.45 * len(story.cells) + 1.6), height_ratios=[0.45 * len(story.cells) + 0.3, 2]
    )
    unit, name = (3600, "hours") if story.seconds > 3 * 3600 else (60, "minutes")
    draw_roles(story, roles, unit)
    roles.legend(loc="upper center", bbox_to_anchor=(0.5, 1.35), ncols=3, frameon=False)
    draw_water(story, water, unit)
    water.set_xlabel(name)
    for mark in story.publications:
        for axes in (roles, water):
            axes.axvline(mark.at / unit, color="#888888", linestyle=":", linewidth=0.8)
    figure.suptitle(f"{story.job}, {story.mode}", x=0.02, ha="left", fontsize=11)
    figure.tight_layout()
    partial = file.with_name(f".{file.name}.partial")
    figure.savefig(partial, dpi=120, format="png")
    pyplot.close(figure)
    os.replace(partial, file)


def draw_roles(story: Story, axes: Axes, unit_seconds: float) -> None:
    """A bar for each cell, coloured by role."""
    for row, cell in enumerate(story.cells):
        for kind, colour in COLOURS.items():
            bars = [(s.start / unit_seconds, (s.end - s.start) / unit_seconds) for s in story.spans if s.row == cell and s.kind == kind]
            axes.broken_barh(bars, (row - 0.35, 0.7), facecolors=colour, label=kind if row == 0 else None)
    axes.set_yticks(range(len(story.cells)), story.cells)
    axes.invert_yaxis()


def draw_water(story: Story, axes: Axes, unit_seconds: float) -> None:
    """Waterlevel against rollout capacity."""
    for name, points, style in (("waterlevel", story.waterlevel, "-"), ("rollout capacity", story.capacity, "--")):
        times = [t / unit_seconds for t, _ in points] + [story.seconds / unit_seconds]
        values = [v for _, v in points] + ([points[-1][1]] if points else [0.0])
        axes.step(times, values, style, where="post", label=name, color="#2a6f97" if style == "-" else "#444444")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", frameon=False)

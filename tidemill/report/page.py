"""`report.html`: one self-contained page that somebody who never saw the job understands."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tidemill.report import chart
from tidemill.report.story import Story, tell
from tidemill.report.timeline import draw_timeline
from tidemill.telemetry.events import AnyEvent

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #64748b; --paper: #fbfcfd; --rule: #dde3ea; --water: #9ad0ec; --dot: #2a6f97 }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e9f0; --soft: #93a1b3; --paper: #12181f; --rule: #2b3642; --water: #1f5673; --dot: #7cc4ec } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1000px; margin: 2.5rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2.2rem 0 .3rem } p { margin: .3rem 0 .8rem } .soft { color: var(--soft) }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(215px, 1fr)); gap: .8rem; margin: 1.4rem 0 }
.tile { border: 1px solid var(--rule); border-radius: 8px; padding: .6rem .8rem } .tile b { display: block; font-size: 1.25rem }
.warn { border-left: 4px solid #e8a33d; padding: .4rem .8rem; background: color-mix(in srgb, #e8a33d 12%, transparent) }
svg { width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: var(--soft) }
.grid { stroke: var(--rule) } .mark { stroke: var(--soft); stroke-dasharray: 3 4 } .water { fill: var(--water) } .water-text { fill: var(--dot) }
.line { fill: none; stroke: var(--ink); stroke-width: 1.8 } circle { fill: var(--dot) }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums } th { text-align: left; color: var(--soft); font-weight: 500 }
td, th { padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--rule); vertical-align: top }
i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 .8em }
"""


_STEP_HEADINGS = ("step", "score", "groups", "executions", "trained tokens", "staleness", "seconds", "micro-steps by cell", "loss", "gradient norm")


def write_report(events: Sequence[AnyEvent], now: float, folder: Path) -> None:
    """Write `report.html` and `timeline.png` into `folder`; each appears whole or not at all."""
    story = tell(events, now)
    if story is None:
        return
    partial = folder / ".report.html.partial"
    partial.write_text(page(story))
    os.replace(partial, folder / "report.html")
    draw_timeline(story, folder / "timeline.png")


def page(story: Story) -> str:
    axis = chart.Axis(story.seconds)
    legend = "".join(f'<i style="background:{chart.COLOURS[kind]}"></i>{kind}' for kind in chart.COLOURS)
    body = [
        f"<h1>{escape(story.job)}</h1>",
        f'<p class="soft">{story.mode} &middot; {escape(story.phase)} &middot; {_duration(story.seconds)}{_resumed(story)}</p>',
        _warning(story),
        _tiles(story),
        "<h2>What each cell did</h2>",
        f'<p class="soft">A cell serves the policy to agents (rollout) or computes gradients (training). Dashed lines: new weights were '
        f"published.{legend}</p>",
        chart.timeline(axis, story.cells, story.spans, story.publications),
        "<h2>Waterlevel</h2>",
        '<p class="soft">Unfinished agent executions, against how many the cells in rollout can serve. '
        "A cell may leave for training only when the rest can carry the water.</p>",
        chart.steps(axis, story.waterlevel, story.capacity, "waterlevel", "rollout capacity", story.publications),
        "<h2>Score</h2>",
        chart.scores(story.scores, "mean score of a step's executions (dots), and the mean of the last four steps (line)"),
        "<h2>Where the time went</h2>",
        _table(("cell", *chart.COLOURS, "Starting or stopped"), _shares(story)),
        "<h2>Flips</h2>",
        '<p class="soft">Answers that were being written when a cell left rollout went on in another cell.</p>',
        _table(("at", "cell", "to", "seconds", "phases", "answers moved"), _flips(story)),
        "<h2>Steps</h2>",
        _table(_STEP_HEADINGS, _steps(story)),
    ]
    if story.dropped_groups:
        body += ["<h2>Groups that were not trained</h2>"]
        body += [_table(("at", "group", "task", "why"), [(_duration(t), str(g.group), g.task, g.reason) for t, g in story.dropped_groups])]
    if story.conditions:
        body += ["<h2>Conditions</h2>", _table(("at", "kind", "text"), [(_duration(t), c.kind, c.text or "resolved") for t, c in story.conditions])]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(story.job)} - tidemill</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>"
    )


def _warning(story: Story) -> str:
    if not story.cores_shared:
        return ""
    return (
        '<p class="warn">This machine has fewer CPU cores than cells, so cells shared them: the order of events is real, the times mean nothing.</p>'
    )


def _tiles(story: Story) -> str:
    quarters = story.quarters()
    dropped = sum(1 for e in story.executions if e.dropped)
    tiles = [("optimizer steps", f"{len(story.steps)} of {story.steps_wanted}")]
    if quarters:
        tiles.append(("score, first to last quarter", f"{quarters[0]:.2f} &rarr; {quarters[1]:.2f}"))
    if story.evaluations:
        tiles.append(("held-out tasks", " &rarr; ".join(f"{e.mean_score:.2f}" for e in story.evaluations)))
    tiles += [
        ("executions finished", f"{len(story.executions) - dropped}" + (f" ({dropped} dropped)" if dropped else "")),
        ("flips", str(len(story.flips))),
        ("answers moved in flight", str(story.answers_moved)),
        ("trained tokens", f"{sum(s.trained_tokens for s in story.steps):,}"),
    ]
    return (
        '<div class="tiles">' + "".join(f'<div class="tile"><b>{value}</b><span class="soft">{name}</span></div>' for name, value in tiles) + "</div>"
    )


def _shares(story: Story) -> Iterable[Sequence[str]]:
    for cell in story.cells:
        shares = [story.share(cell, kind) for kind in chart.COLOURS]
        yield (cell, *(f"{s:.0%}" for s in shares), f"{max(0.0, 1 - sum(shares)):.0%}")


def _flips(story: Story) -> Iterable[Sequence[str]]:
    for at, flip in story.flips:
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in flip.phases.items())
        yield (
            _duration(at),
            flip.cell,
            flip.to.value,
            f"{flip.seconds:.2f}",
            phases,
            str(flip.calls_in_flight) if flip.to.value == "Training" else "",
        )


def _steps(story: Story) -> Iterable[Sequence[str]]:
    for step in story.steps:
        by_cell = ", ".join(f"{cell} {count}" for cell, count in sorted(step.contributions.items()))
        score = "-" if step.mean_score is None else f"{step.mean_score:.3f}"
        figures = [f"{step.statistics[name]:.3g}" if name in step.statistics else "-" for name in ("loss", "gradient_norm")]
        yield (
            str(step.step),
            score,
            f"{step.groups} ({step.equal_groups} of equal scores)" if step.equal_groups else str(step.groups),
            str(step.executions),
            str(step.trained_tokens),
            str(step.staleness),
            f"{step.seconds:.0f}",
            by_cell,
            *figures,
        )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in headings)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{lines}</table>"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def _resumed(story: Story) -> str:
    return f" &middot; resumed {story.resumes} times" if story.resumes else ""

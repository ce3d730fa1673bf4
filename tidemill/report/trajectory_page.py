"""A trajectory as one self-contained page: a row for each branch, drawn to the scale of its tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from itertools import count as count_up
from pathlib import Path

from tidemill.report.page import STYLE
from tidemill.report.strands import Picture, Strand
from tidemill.report.trajectory import count, facts, span
from tidemill.trajectory.tree import Node

WIDTH = 960
LEFT = 190
RIGHT = 12
ROW = 26
BAR = 14
NARROWEST = 0.75
"""Pixels; a turn of a few tokens must be seen."""

VERSIONS = ("#2a9fd6", "#1b7f5c", "#7a5bd0", "#c2507f", "#a8761c", "#4d6b8a")
"""By policy version, in turn."""

_FIGURES = ("calls", "given", "sampled", "drawn", "moved")

OWN_STYLE = """
.given { fill: var(--rule) } .fork { fill: none; stroke: var(--soft) } .pale { opacity: .38 } svg .name { fill: var(--ink) }
svg { margin-bottom: 1.2rem } svg rect:hover { stroke: var(--ink) } ul { padding-left: 1.1rem } li { margin: .15rem 0 }
.n { text-align: right } .key { white-space: nowrap }
"""


def write_page(seen: Picture, path: Path) -> None:
    """It appears whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(page(seen), encoding="utf-8")
    os.replace(partial, path)


def page(seen: Picture) -> str:
    told = seen.trajectory
    versions = sorted({version for strand in seen.strands for version in strand.versions})
    body = [
        f"<h1>{escape(told.execution)}</h1>",
        f'<p class="soft">task {escape(told.task)} &middot; attempt {told.attempt} &middot; dispatched under version {told.dispatched_version}</p>',
        _tiles(seen),
        "<h2>Branches</h2>",
        '<p class="soft">From left to right the tokens of each branch; those it shares with an earlier one stand in that row.'
        f"{_legend(seen, versions)}</p>",
        _chart(seen, versions),
        _table(seen),
        "<h2>More</h2>",
        "<ul>" + "".join(f"<li>{escape(fact)}</li>" for fact in facts(seen)) + "</ul>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(told.execution)} - tidemill</title><style>{STYLE}{OWN_STYLE}</style></head><body>{''.join(body)}</body></html>"
    )


def _tiles(seen: Picture) -> str:
    told, nodes = seen.trajectory, seen.tree.downward
    tiles = [
        ("score", "none: dropped" if told.score is None else f"{told.score:g}"),
        ("calls", f"{len(nodes):,}"),
        ("branches", f"{len(seen.tree.leaves):,}"),
        ("tokens given", f"{sum(len(node.turn.context_ids) for node in nodes):,}"),
        ("tokens sampled", f"{sum(node.turn.sampled for node in nodes):,}"),
    ]
    if seen.drawn is not None:
        tiles.append((f"drawn for training, on {count(seen.paths_drawn, 'path')}", f"{seen.drawn_tokens(nodes):,}"))
    shown = "".join(f'<div class="tile"><b>{escape(value)}</b><span class="soft">{escape(name)}</span></div>' for name, value in tiles)
    return f'<div class="tiles">{shown}</div>'


def _legend(seen: Picture, versions: Sequence[int]) -> str:
    marks = [("var(--rule)", "", "given")]
    marks += [(_colour(version, versions), "", f"sampled by version {version}") for version in versions]
    if seen.drawn is not None:
        marks.append((VERSIONS[0], ' class="pale"', "not drawn for training"))
    return "".join(f' <span class="key"><i{look} style="background:{colour}"></i>{text}</span>' for colour, look, text in marks)


def _colour(version: int, versions: Sequence[int]) -> str:
    return VERSIONS[versions.index(version) % len(VERSIONS)]


def _chart(seen: Picture, versions: Sequence[int]) -> str:
    longest = max((leaf.end for leaf in seen.tree.leaves), default=0)
    scale = (WIDTH - LEFT - RIGHT) / max(longest, 1)
    height = ROW * len(seen.strands) + 24
    drawn = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img">']
    for row, strand in enumerate(seen.strands):
        y = row * ROW + 4
        name = strand.name if len(strand.name) <= 30 else strand.name[:29] + "…"
        drawn.append(f'<text class="name" x="0" y="{y + 11}">{escape(name)}<title>{escape(strand.name)}</title></text>')
        if strand.parent is not None:
            x = LEFT + strand.start * scale
            drawn.append(f'<path class="fork" d="M{x:.1f} {strand.parent * ROW + 4 + BAR}V{y + BAR / 2:.1f}h3"/>')
        drawn += [bar for node in strand.nodes for bar in _bars(seen, node, y, scale, versions)]
    for tokens in _ticks(longest):
        x = LEFT + tokens * scale
        drawn.append(f'<text x="{x:.1f}" y="{height - 4}" text-anchor="middle">{tokens:,}</text>')
    return "".join([*drawn, "</svg>"])


def _bars(seen: Picture, node: Node, y: int, scale: float, versions: Sequence[int]) -> list[str]:
    """What was given, then the runs that one cell sampled with one version."""
    turn, x = node.turn, LEFT + node.before * scale
    by = f" ({', '.join(turn.given_by)})" if turn.given_by else ""
    bars = [_bar(x, y, len(turn.context_ids) * scale, 'class="given"', f"{turn.id}: {len(turn.context_ids):,} tokens given{by}")]
    x += len(turn.context_ids) * scale
    pale = ' class="pale"' if seen.drawn is not None and turn.id not in seen.drawn else ""
    for cell, version, tokens in _runs(node):
        note = f"{turn.id}: {tokens:,} tokens sampled on {cell}, version {version}; {turn.wire}, ended with {turn.finish_reason}"
        note += f" after {turn.ended - turn.started:.1f} s"
        bars.append(_bar(x, y, tokens * scale, f'fill="{_colour(version, versions)}"{pale}', note))
        x += tokens * scale
    return bars


def _bar(x: float, y: int, width: float, look: str, note: str) -> str:
    gap = 0.6 if width > 2 else 0.0  # between one turn and the next
    return f'<rect x="{x:.2f}" y="{y}" width="{max(width - gap, NARROWEST):.2f}" height="{BAR}" {look}><title>{escape(note)}</title></rect>'


def _runs(node: Node) -> list[tuple[str, int, int]]:
    """Cell, version, tokens."""
    runs: list[tuple[str, int, int]] = []
    for piece in node.turn.pieces:
        for version in piece.versions:
            if runs and runs[-1][:2] == (piece.cell, version):
                runs[-1] = (piece.cell, version, runs[-1][2] + 1)
            else:
                runs.append((piece.cell, version, 1))
    return runs


def _ticks(longest: int) -> list[int]:
    steps = (digit * 10**power for power in count_up() for digit in (1, 2, 5))
    step = next(step for step in steps if longest <= 8 * step)
    return list(range(0, longest + 1, step))


def _table(seen: Picture) -> str:
    headings = ("branch", "from", "calls", "given", "sampled", *(("drawn",) if seen.drawn is not None else ()), "version", "cells", "moved")
    rows = [headings, *(_row(seen, strand) for strand in seen.strands)]
    cells = [[f"<td{' class="n"' if name in _FIGURES else ''}>{escape(cell)}</td>" for name, cell in zip(headings, row, strict=True)] for row in rows]
    head, *shown = ["<tr>" + "".join(row) + "</tr>" for row in cells]
    return f"<table>{head.replace('td', 'th')}{''.join(shown)}</table>"


def _row(seen: Picture, strand: Strand) -> list[str]:
    origin = "" if strand.parent is None else f"{seen.strands[strand.parent].name}, token {strand.start:,}"
    drawn = [f"{seen.drawn_tokens(strand.nodes):,}"] if seen.drawn is not None else []
    figures = [f"{len(strand.nodes):,}", f"{strand.given:,}", f"{strand.sampled:,}", *drawn]
    return [strand.name, origin, *figures, span(strand.versions), ", ".join(strand.cells), str(strand.moved or "")]

"""Charts as SVG text. Pure; no script, so that a report is one file that opens anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 960
LEFT = 92  # room for names
RIGHT = 16

COLOURS = {"Rollout": "#2a9fd6", "Training": "#e8a33d", "Flipping": "#b455c9"}


@dataclass(frozen=True, slots=True)
class Axis:
    """Seconds since the start, onto pixels."""

    seconds: float

    def x(self, t: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * t / max(self.seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Span:
    row: str
    kind: str
    start: float
    end: float
    note: str


@dataclass(frozen=True, slots=True)
class Mark:
    at: float
    label: str


Points = Sequence[tuple[float, float]]


def timeline(axis: Axis, rows: Sequence[str], spans: Sequence[Span], marks: Sequence[Mark]) -> str:
    """A bar for each row, coloured by kind; dashed lines where `marks` are."""
    height, bar = 30, 20
    total = height * len(rows) + 34
    parts = [_open(total)]
    for index, row in enumerate(rows):
        y = index * height + 16
        parts.append(f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(row)}</text>')
        for span in spans:
            if span.row == row:
                width = max(1.0, axis.x(span.end) - axis.x(span.start))
                parts.append(
                    f'<rect x="{axis.x(span.start):.1f}" y="{y}" width="{width:.1f}" height="{bar}" rx="2" fill="{COLOURS.get(span.kind, "#888")}">'
                    f"<title>{escape(span.note)}</title></rect>"
                )
    parts += [_mark(axis, mark, total - 18) for mark in marks]
    return "".join([*parts, _clock(axis, total - 4), "</svg>"])


def steps(axis: Axis, filled: Points, line: Points, filled_label: str, line_label: str, marks: Sequence[Mark]) -> str:
    """Two step functions over time: one as an area, one as a line above it."""
    total, base, top = 190, 160.0, 18.0
    highest = max([v for _, v in (*filled, *line)], default=1.0) or 1.0

    def y(value: float) -> float:
        return base - (base - top) * value / highest

    area = _staircase(axis, filled, y)
    parts = [_open(total), *_grid(highest, y)]
    if area:
        parts.append(f'<path class="water" d="{area} L{axis.x(axis.seconds):.1f},{base} L{axis.x(filled[0][0]):.1f},{base} Z"/>')
    if line:
        parts.append(f'<path class="line" d="{_staircase(axis, line, y)}"/>')
    parts += [_mark(axis, mark, base) for mark in marks]
    parts.append(
        f'<text x="{LEFT + 6}" y="12"><tspan class="water-text">&#9632; {escape(filled_label)}</tspan>  '
        f"<tspan>&#9472; {escape(line_label)}</tspan></text>"
    )
    return "".join([*parts, _clock(axis, total - 14), "</svg>"])


def scores(values: Sequence[float | None], label: str) -> str:
    """A dot for each step, and a line through the running mean of four."""
    total, base, top = 190, 160.0, 18.0
    room = (WIDTH - LEFT - RIGHT) / max(1, len(values))

    def x(index: int) -> float:
        return LEFT + room * (index + 0.5)

    def y(value: float) -> float:
        return base - (base - top) * value

    known = [(i, v) for i, v in enumerate(values) if v is not None]
    means = [(i, sum(v for _, v in known[max(0, n - 3) : n + 1]) / len(known[max(0, n - 3) : n + 1])) for n, (i, _) in enumerate(known)]
    parts = [_open(total), *_grid(1.0, y)]
    if means:
        parts.append('<path class="line" d="M' + " L".join(f"{x(i):.1f},{y(v):.1f}" for i, v in means) + '"/>')
    parts += [f'<circle cx="{x(i):.1f}" cy="{y(v):.1f}" r="4.5"><title>step {i + 1}: {v:.3f}</title></circle>' for i, v in known]
    parts += [
        f'<text x="{x(i):.1f}" y="{base + 16}" text-anchor="middle">{i + 1}</text>' for i in range(len(values)) if len(values) <= 32 or i % 8 == 7
    ]
    return "".join([*parts, f'<text x="{LEFT + 6}" y="12">{escape(label)}</text></svg>'])


def _open(height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" xmlns="http://www.w3.org/2000/svg">'


def _staircase(axis: Axis, points: Points, y: Callable[[float], float]) -> str:
    if not points:
        return ""
    path = f"M{axis.x(points[0][0]):.1f},{y(points[0][1]):.1f}"
    for t, value in points[1:]:
        path += f" H{axis.x(t):.1f} V{y(value):.1f}"
    return f"{path} H{axis.x(axis.seconds):.1f}"


def _grid(highest: float, y: Callable[[float], float]) -> list[str]:
    lines = []
    for share in (0.0, 0.5, 1.0):
        at = y(highest * share)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        lines.append(f'<text x="{LEFT - 10}" y="{at + 4:.1f}" text-anchor="end">{highest * share:g}</text>')
    return lines


def _mark(axis: Axis, mark: Mark, bottom: float) -> str:
    x = axis.x(mark.at)
    return f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="8" y2="{bottom:g}"><title>{escape(mark.label)}</title></line>'


def _clock(axis: Axis, y: float) -> str:
    """Labels of the time axis, about eight of them, at round times."""
    wanted = axis.seconds / 8
    unit = next((u for u in (5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200) if u >= wanted), 86400)
    labels = []
    for n in range(int(axis.seconds // unit) + 1):
        t = n * unit
        text = f"{t // 3600}:{t % 3600 // 60:02d} h" if unit >= 3600 else f"{t // 60}:{t % 60:02d}"
        labels.append(f'<text x="{axis.x(t):.1f}" y="{y:g}" text-anchor="middle">{text}</text>')
    return "".join(labels)

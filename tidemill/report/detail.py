"""The lower half of `tidemill top`: strips of the last minutes, where time goes, flips, training and calls. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemill.report.recent import Strips

COLOURS = {"Rollout": "cyan", "Training": "yellow", "Flipping": "magenta", "Starting": "grey50", "No pods": "grey50", "Failed": "red"}
BARS = "▁▂▃▄▅▆▇█"
STATISTICS = {
    "loss": ("loss", "{:.4g}"),
    "gradient norm": ("gradientNorm", "{:.3g}"),
    "clipped": ("clipShare", "{:.1%}"),
    "trainer - engine": ("meanLogprobDifference", "{:.2g}"),
}
CAUSES = {
    "NoWork": "no work",
    "WaitingForWeights": "waiting for weights",
    "JoiningClosed": "joining closed",
    "Draining": "draining",
    "Flipping": "flipping",
    "Starting": "starting",
    "Failed": "failed",
}
LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class Measured:
    """What the processes' metrics say, over the last seconds."""

    roles: dict[str, str]  # what each cell does now
    idle: dict[str, dict[str, float]]  # cell -> cause -> share of the time
    calls_per_second: float
    tokens_per_second: float
    live_calls: int
    waiting_calls: int
    held_turns: int


@dataclass(frozen=True, slots=True)
class Detail:
    strips: Strips
    measured: Measured | None = None  # None: the processes do not answer, or are gone


def details(detail: Detail) -> RenderableType:
    strips, measured = detail.strips, detail.measured
    parts: list[RenderableType] = [_strips(strips)]
    if measured is not None:
        parts += [Text(), _idle(measured), _calls(measured)]
    if strips.flips:
        parts += [Text(), _flips(strips)]
    if said := _training(strips.statistics):
        parts += [Text(), said]
    return Group(*parts)


def spark(values: Sequence[float | None], low: float, high: float) -> str:
    """One character a value, a blank where there is none."""
    shares = (None if value is None else min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0 for value in values)
    return "".join(" " if share is None else BARS[round(share * (len(BARS) - 1))] for share in shares)


def _strips(strips: Strips) -> Table:
    table = Table(box=None, pad_edge=False, header_style="grey62")
    minutes, seconds = divmod(int(strips.seconds), 60)
    table.add_column(f"last {minutes}:{seconds:02d}")
    table.add_column("")
    table.add_column("now", justify="right")
    for cell, words in strips.roles.items():
        strip = Text()
        for word in words:
            strip.append("█" if word else " ", style=COLOURS.get(word, ""))
        table.add_row(cell, strip)
    most = max((n for n in (*strips.waterlevel, *strips.capacity) if n is not None), default=1)
    for name, row in (("waterlevel", strips.waterlevel), ("capacity", strips.capacity)):
        last = next((n for n in reversed(row) if n is not None), None)
        table.add_row(name, spark(row, 0, most), "" if last is None else str(last))
    known = [score for score in strips.scores if score is not None]
    if known:
        shown = f"{known[-1]:.2f}"
        table.add_row(f"score of {len(strips.scores)} steps", spark(strips.scores, min(0.0, *known), max(1.0, *known)), shown)
    return table


def _idle(measured: Measured) -> Table:
    table = Table(box=None, pad_edge=False, header_style="grey62")
    table.add_column("idle")
    table.add_column("")
    for cell, causes in measured.idle.items():
        shares = sorted(((share, cause) for cause, share in causes.items() if share >= LEAST_SHARE), reverse=True)
        said = ", ".join(f"{share:.0%} {CAUSES.get(cause, cause)}" for share, cause in shares)
        total = sum(share for share, _ in shares)
        table.add_row(cell, Text(f"{total:4.0%}: {said}" if said else "  0%", style="red" if total > 0.5 else ""))
    return table


def _calls(measured: Measured) -> Text:
    parts = [f"{measured.calls_per_second:.1f} calls/s", f"{measured.tokens_per_second:.0f} tokens/s", f"{measured.live_calls} under way"]
    parts += [f"{measured.waiting_calls} waiting for an engine"] if measured.waiting_calls else []
    parts += [f"{measured.held_turns} turns not yet with the conductor"] if measured.held_turns else []
    return Text("gateway: " + ", ".join(parts))


def _flips(strips: Strips) -> Table:
    table = Table(box=None, pad_edge=False, header_style="grey62")
    for heading in ("last flips", "to", "seconds", "phases"):
        table.add_column(heading)
    for flip in strips.flips:
        told = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in flip.phases.items())
        table.add_row(flip.cell, Text(flip.to.value, style=COLOURS[flip.to.value]), f"{flip.seconds:.1f}", told)
    return table


def _training(statistics: dict[str, float]) -> Text | None:
    told = [f"{words} {form.format(statistics[name])}" for words, (name, form) in STATISTICS.items() if name in statistics]
    return Text("last step: " + ", ".join(told)) if told else None

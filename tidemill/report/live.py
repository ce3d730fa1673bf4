"""The live view of a job: a panel in a terminal, plain lines elsewhere. The same for a job on this machine and for one on a cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidemill.report.detail import COLOURS, Detail, details

WIDTH = 100


@dataclass(frozen=True, slots=True)
class CellView:
    name: str
    word: str  # what it is doing
    epoch: int  # granted
    policy_version: int  # -1: no weights yet
    last_flip: str  # in words; empty: it never flipped
    node: str = ""
    remarks: str = ""  # pinned, cordoned


@dataclass(frozen=True, slots=True)
class Executions:
    """What only the conductor counts."""

    done: int
    running: int
    waiting: int
    ready_groups: int


@dataclass(frozen=True, slots=True)
class View:
    """One reading of a job, as it is drawn. What is empty or None is left out."""

    job: str
    mode: str
    step: int
    steps: int
    burst: int
    policy_version: int
    waterlevel: int
    capacity: int
    score: float | None
    staleness: int
    cells: tuple[CellView, ...]
    executions: Executions | None = None
    phase: str = ""
    limited_by: str = ""
    eta: str = ""
    condition: str = ""  # what holds the job back
    detail: Detail | None = None


class Screen(Protocol):
    def say(self, line: str) -> None: ...

    def show(self, view: View) -> None: ...

    def close(self) -> None: ...


def open_screen(to: TextIO | None = None) -> Screen:
    """A live view when standard error, or what is given, is a terminal; else lines."""
    out = to or sys.stderr
    return LiveScreen(Console(file=out)) if out.isatty() else LineScreen(out)


def flip_words(to: str, seconds: float, calls_in_flight: int) -> str:
    moved = f", {calls_in_flight} answers moved" if to == "Training" else ""
    return f"to {to} in {seconds:.1f} s{moved}"


def line(view: View) -> str:
    """A reading in one line."""
    score = "-" if view.score is None else f"{view.score:.2f}"
    counted = view.executions
    parts = [
        view.phase,
        f"step {view.step}/{view.steps} burst {view.burst} version {view.policy_version} water {view.waterlevel}/{view.capacity}",
        f"running {counted.running} finished {counted.done} ready {counted.ready_groups}" if counted else "",
        f"limited by {view.limited_by.partition(':')[0]}" if view.limited_by else "",
        f"score {score}",
        f"eta {view.eta}" if view.eta else "",
        " ".join(f"{c.name}={c.word.replace(' ', '-')}" for c in view.cells),
        f"! {view.condition}" if view.condition else "",
    ]
    return " ".join(part for part in parts if part)


class LineScreen:
    """One line for every reading that differs from the one before, at most one a second."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._started = time.monotonic()
        self._last = ""
        self._last_time = -1.0

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self._started:7.1f} s] {line}", file=self._out, flush=True)

    def show(self, view: View) -> None:
        now, shown = time.monotonic(), line(view)
        if shown != self._last and now - self._last_time >= 1.0:
            self._last, self._last_time = shown, now
            self.say(shown)

    def close(self) -> None:
        pass


class LiveScreen:
    """A panel that is drawn over itself."""

    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
        self._lines: list[str] = []
        self._view: View | None = None
        self._closing = False
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def say(self, line: str) -> None:
        self._lines = [*self._lines[-3:], line]

    def show(self, view: View) -> None:
        self._view = view

    def close(self) -> None:
        self._closing = True
        self._live.stop()

    def _draw(self) -> Panel:
        # A panel that is higher than the terminal is cut below; in the end it is shown whole, and so are the paths in it.
        spoken = Text("\n".join(self._lines), style="grey62", no_wrap=not self._closing, overflow="fold" if self._closing else "ellipsis")
        shown = clock(time.monotonic() - self._started)
        if self._view is None:
            return panel(f"tidemill  {shown}", spoken)
        return panel(f"{title(self._view)}  {shown}", *body(self._view), Text(), spoken)


def clock(seconds: float) -> str:
    """1:05, or 2:00:05."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def title(view: View) -> str:
    return "  ".join(part for part in ("tidemill", view.job, view.mode, view.phase) if part)


def body(view: View) -> Iterator[RenderableType]:
    yield numbers(view)
    yield Text()
    yield cells(view)
    if view.detail is not None:
        yield Text()
        yield details(view.detail)


def panel(heading: str, *body: RenderableType) -> Panel:
    return Panel(Group(*body), title=Text(heading), title_align="left", border_style="blue", width=WIDTH)


def numbers(view: View, *, bars: bool = True) -> RenderableType:
    table = Table.grid(padding=(0, 2))

    def bar(total: int, completed: int) -> RenderableType:
        return ProgressBar(total=total, completed=completed, width=40) if bars else ""

    table.add_row(
        "step",
        f"{view.step} / {view.steps}",
        bar(view.steps, view.step),
        f"burst {view.burst}, policy version {view.policy_version}",
    )
    table.add_row(
        "waterlevel",
        f"{view.waterlevel} / {view.capacity}",
        bar(max(view.capacity, 1), min(view.waterlevel, view.capacity)),
        "what cells in rollout can serve",
    )
    counted = view.executions
    if counted:
        table.add_row(
            "executions", f"{counted.done} done", f"{counted.running} running, {counted.waiting} waiting", f"{counted.ready_groups} groups ready"
        )
    score = "-" if view.score is None else f"{view.score:.2f}"
    table.add_row("score", score, "mean of the last step", f"staleness at most {view.staleness}")
    if view.limited_by:
        word, _, why = view.limited_by.partition(": ")
        table.add_row("limited by", word, why, f"{view.eta} to go" if view.eta else "")
    if not view.condition:
        return table
    held = Table.grid(padding=(0, 2))  # of its own, because it may be long
    held.add_row(Text("held back ", style="red"), Text(view.condition))
    return Group(table, held)


def cells(view: View) -> Table:
    table = Table(box=None, pad_edge=False, header_style="grey62")
    shown = ["cell", "role", "epoch", "version", *(["node"] if any(c.node for c in view.cells) else []), "last flip"]
    for heading in shown:
        table.add_column(heading, min_width=10 if len(shown) == 5 else 7)
    for cell in view.cells:
        version = str(cell.policy_version) if cell.policy_version >= 0 else "-"
        word = Text(cell.word, style=COLOURS.get(cell.word, ""))
        if cell.remarks:
            word.append(f" {cell.remarks}", style="grey62")
        node = [Text(cell.node)] if "node" in shown else []
        table.add_row(cell.name, word, str(cell.epoch), version, *node, Text(cell.last_flip or "-"))
    return table

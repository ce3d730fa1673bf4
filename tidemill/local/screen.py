"""What a person sees while a job runs: a live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tidemill.wire.cell import CellPhase, Role
from tidemill.wire.conductor import CellTide, Tide

_COLOURS = {"Rollout": "cyan", "Training": "yellow", "Flipping": "magenta", "Starting": "grey50", "Failed": "red"}


class Screen(Protocol):
    def say(self, line: str) -> None: ...

    def show(self, tide: Tide) -> None: ...

    def close(self) -> None: ...


def open_screen(out: TextIO = sys.stderr) -> Screen:
    """A live view when `out` is a terminal, else lines."""
    return LiveScreen(Console(file=out)) if out.isatty() else LineScreen(out)


def cell_word(cell: CellTide) -> str:
    """One word for what a cell is doing."""
    if cell.state is None:
        return "Starting"
    if cell.state.phase in (CellPhase.STARTING, CellPhase.FAILED):
        return cell.state.phase.value
    if cell.state.epoch != cell.granted_epoch or cell.state.phase is CellPhase.FLIPPING:
        return "Flipping"
    return cell.state.role.value


def capacity(tide: Tide) -> int:
    """C_R: executions that the cells granted Rollout can serve."""
    return sum(c.capacity for c in tide.cells if c.granted_role is Role.ROLLOUT)


class LineScreen:
    """One line for every reading that differs from the one before, at most one a second."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._started = time.monotonic()
        self._last = ""
        self._last_time = -1.0

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self._started:7.1f} s] {line}", file=self._out, flush=True)

    def show(self, tide: Tide) -> None:
        cells = " ".join(f"{c.cell}={cell_word(c)}" for c in tide.cells)
        score = "-" if tide.mean_score is None else f"{tide.mean_score:.2f}"
        line = (
            f"step {tide.step}/{tide.steps} burst {tide.burst} version {tide.policy_version} water {tide.waterlevel}/{capacity(tide)} "
            f"running {tide.started - tide.terminated} finished {tide.terminated} ready {tide.ready_groups} score {score} {cells}"
            + (f" ! {tide.condition}" if tide.condition else "")
        )
        now = time.monotonic()
        if line != self._last and now - self._last_time >= 1.0:
            self._last, self._last_time = line, now
            self.say(line)

    def close(self) -> None:
        pass


class LiveScreen:
    """A panel that is drawn over itself."""

    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
        self._lines: list[str] = []
        self._tide: Tide | None = None
        self._live = Live(self._draw(), console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def say(self, line: str) -> None:
        self._lines = [*self._lines[-3:], line]
        self._live.update(self._draw())

    def show(self, tide: Tide) -> None:
        self._tide = tide
        self._live.update(self._draw())

    def close(self) -> None:
        self._live.update(self._draw(), refresh=True)
        self._live.stop()

    def _draw(self) -> Panel:
        spoken = Text("\n".join(self._lines), style="grey62")
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        title = (
            f"tidemill  {minutes}:{seconds:02d}" if self._tide is None else f"tidemill  {self._tide.job}  {self._tide.mode}  {minutes}:{seconds:02d}"
        )
        body = [spoken] if self._tide is None else [_numbers(self._tide), Text(), _cells(self._tide), Text(), spoken]
        return Panel(Group(*body), title=title, title_align="left", border_style="blue", width=100)


def _numbers(tide: Tide) -> Table:
    table = Table.grid(padding=(0, 2))
    full = capacity(tide)
    table.add_row(
        "step",
        f"{tide.step} / {tide.steps}",
        ProgressBar(total=tide.steps, completed=tide.step, width=40),
        f"burst {tide.burst}, policy version {tide.policy_version}",
    )
    table.add_row(
        "waterlevel",
        f"{tide.waterlevel} / {full}",
        ProgressBar(total=max(full, 1), completed=min(tide.waterlevel, full), width=40),
        "what cells in rollout can serve",
    )
    score = "-" if tide.mean_score is None else f"{tide.mean_score:.2f}"
    table.add_row(
        "executions",
        f"{tide.terminated} done",
        f"{tide.started - tide.terminated} running, {tide.dispatched - tide.started} waiting",
        f"{tide.ready_groups} groups ready",
    )
    table.add_row("score", score, "mean of the last step", f"staleness at most {tide.staleness_max}")
    if tide.condition:
        table.add_row(Text("held back", style="red"), tide.condition)
    return table


def _cells(tide: Tide) -> Table:
    table = Table(box=None, pad_edge=False, header_style="grey62")
    for heading in ("cell", "role", "epoch", "version", "last flip"):
        table.add_column(heading, min_width=10)
    for cell in tide.cells:
        word = cell_word(cell)
        flip = cell.state.last_flip if cell.state else None
        shown = f"to {flip.to} in {flip.seconds:.1f} s" if flip else "-"
        if flip and flip.to is Role.TRAINING:
            shown += f", {flip.calls_in_flight} answers moved"
        version = str(cell.state.policy_version) if cell.state and cell.state.policy_version >= 0 else "-"
        table.add_row(cell.cell, Text(word, style=_COLOURS.get(word, "")), str(cell.granted_epoch), version, shown)
    return table

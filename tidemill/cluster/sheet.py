"""What `tidemill status` shows: one screen about one job. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemill.cluster.objects import Cell, Job
from tidemill.cluster.picture import Complaint, complaints, phases, view_of
from tidemill.report.live import cells as cell_table
from tidemill.report.live import numbers, title

SHOWN_FLIPS = 6


def sheet(job: Job, cells: tuple[Cell, ...], now: float) -> RenderableType:
    view = replace(view_of(job, cells, with_phases=True), condition="")  # it stands below, with the others
    parts: list[RenderableType] = [Text(title(view), style="bold"), _times(job, now), Text(), numbers(view, bars=False)]
    if cells:
        parts += [Text(), cell_table(view)]
    found = complaints(job, cells)
    if found:
        parts += [Text(), _complaints(found, now)]
    if job.status.flips:
        parts += [Text(), _flips(job, now)]
    return Group(*parts)


def ago(stamp: str, now: float) -> str:
    """A time of a status as people read it; "" for none."""
    if not stamp:
        return ""
    seconds = max(0, int(now - datetime.fromisoformat(stamp).timestamp()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def _times(job: Job, now: float) -> Text:
    status = job.status
    said = [f"started {ago(status.start_time, now)}" if status.start_time else "not started"]
    if status.completion_time:
        said.append(f"ended {ago(status.completion_time, now)}")
    if job.suspend:
        said.append("spec.suspend is set")
    said.append(f"decided by the operator, term {status.term}" if status.term else "no operator decides")
    why = next((c.message for c in status.conditions if c.type == "Finished"), "")
    return Text("; ".join([*said, *([why] if why else [])]), style="grey62")


def _complaints(found: tuple[Complaint, ...], now: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="grey62")
    for heading in ("not fine", "since", "why, and what to do"):
        table.add_column(heading)
    for each in found:
        name = f"{each.about}: {each.type}" if each.about else each.type
        told = f"{each.reason}: {each.message}" if each.message else each.reason
        table.add_row(Text(name, style="red"), ago(each.since, now), Text(told + (f"; {each.remedy}" if each.remedy else "")))
    return table


def _flips(job: Job, now: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="grey62")
    for heading in ("last flips", "to", "seconds", "when", "answers moved", "phases"):
        table.add_column(heading)
    for flip in reversed(job.status.flips[-SHOWN_FLIPS:]):
        moved = str(flip.calls_in_flight) if flip.to.value == "Training" else ""
        table.add_row(flip.cell, flip.to.value, f"{flip.seconds:.1f}", ago(flip.time, now), moved, Text(phases(flip)))
    return table

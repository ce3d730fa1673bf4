"""What is measured or predicted beyond the counters of a tide. Only extensions need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outlook:
    pending: int = 0  # dispatched, not started: w = pending + running
    ending_soon: int = 0  # running executions that are predicted to end within one flip
    backlog_seconds: float = 0.0  # training that could be done now, in seconds of one cell
    due_seconds: float = 0.0  # training that this burst still has to do, ready or not, in seconds of one cell
    next_ready_seconds: float = 0.0  # predicted, until another group is ready
    next_burst_seconds: float = 0.0  # predicted, until the next burst's first step could begin
    flip_seconds: float = 0.0  # rolling median of the last flips into training
    return_seconds: float = 0.0  # and back
    peak_load: float = 1.0  # executions for each place at which a cell's measured throughput is highest
    idle_cells: tuple[str, ...] = ()  # in training, with nothing to do

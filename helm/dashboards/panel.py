"""One panel as plain data: what it shows, how, and what somebody on call does about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Shape(Enum):
    LINES = "lines"
    STACKED = "stacked"
    STAT = "stat"
    TIMELINE = "timeline"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""  # of a table: what its column is called


@dataclass(frozen=True, slots=True)
class State:
    """What a number stands for."""

    value: int
    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    description: str  # what is to be seen, and what to do
    queries: tuple[Query, ...]
    shape: Shape = Shape.LINES
    unit: str = "short"
    width: int = 8  # of 24
    height: int = 8
    thresholds: tuple[tuple[float, str], ...] = ()  # from this value on this colour; green below
    minimum: float | None = 0.0
    maximum: float | None = None
    states: tuple[State, ...] = ()
    link: str = ""  # uid of the dashboard that shows one series of this in detail
    variables: tuple[str, ...] = ()  # labels that the link hands on
    empty: str = ""  # why a healthy job may have nothing to show here


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    description: str
    variables: tuple[str, ...]  # labels to choose by, wide to narrow
    many: tuple[str, ...]  # those of them of which several can be chosen
    rows: tuple[Row, ...]
    source: str = "tidemill_job_phase"  # the metric whose labels can be chosen
    annotated: bool = False  # with flips and publications

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


NEEDS_A_GPU = "needs a GPU"
NEEDS_THE_ENGINES_METRICS = "needs a scrape of the engine's own metrics, at /engine/metrics of the cell's agent"
NEEDS_RDMA = "needs an RDMA port"
NEEDS_A_FAILURE = "needs a failure"
NEEDS_AN_OPERATOR = "needs an operator, so a cluster"
NEEDS_HELD_OUT_TASKS = "needs held-out tasks"
NEEDS_A_BURST = "needs a finished burst"
NEEDS_AN_ALERT = "needs the alerting rules, and one that fires"

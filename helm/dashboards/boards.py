"""All of them, and every query in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from helm.dashboards import cell, fleet, gateway, job, operator
from helm.dashboards.panel import Board, Panel, Query

BOARDS: tuple[Board, ...] = (fleet.BOARD, job.BOARD, cell.BOARD, gateway.BOARD, operator.BOARD)


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of one panel."""

    board: Board
    panel: Panel
    query: Query

    def __str__(self) -> str:
        return f"{self.board.title} / {self.panel.title} / {self.query.legend or 'value'}"


def queries() -> Iterator[Asked]:
    for board in BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                yield Asked(board, panel, query)


def filled(expr: str, interval: str = "1m", **chosen: str) -> str:
    """A query as Grafana sends it: variables that are not chosen match everything."""
    expr = expr.replace("$__rate_interval", interval)
    for name in ("cluster", "namespace", "job", "cell"):
        expr = expr.replace(f"${name}", chosen.get(name, ".*"))
    return expr

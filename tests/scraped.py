"""What must hold of all that a Prometheus scraped of a job, wherever that ran: the chart's queries and rules have data, and counts are right."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from helm.dashboards.boards import Asked, filled, queries
from helm.dashboards.panel import NEEDS_A_FAILURE, NEEDS_A_GPU, NEEDS_AN_ALERT, NEEDS_HELD_OUT_TASKS, NEEDS_RDMA
from tests.scraping import Labels, Prometheus, Series, has_data
from tidemill.telemetry.catalogue import ALL
from tidemill.telemetry.metric import Kind

EACH_PANEL = pytest.mark.parametrize("asked", list(queries()), ids=str)
EACH_COUNT = pytest.mark.parametrize(("name", "moment"), [("dispatched", "created"), ("started", "started"), ("terminated", "ended")])
"""Of executions, and the column of the conductor's store that has the time of it."""

MAY_LACK = (NEEDS_A_FAILURE, NEEDS_A_GPU, NEEDS_AN_ALERT, NEEDS_HELD_OUT_TASKS, NEEDS_RDMA)
"""What no job of the tests has: small ones, of this machine's cores, that nothing happens to."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """What a Prometheus knows of one job."""

    prometheus: Prometheus
    interval_seconds: float
    rules: list[dict[str, Any]]  # as they stood just after the job's end
    where: Labels = field(default_factory=dict)  # labels that the scrape gave the job's series, by which to choose them

    @property
    def first(self) -> float:
        return self.prometheus.scraped(self._selector("tidemill_waterlevel"))[0]

    @property
    def last(self) -> float:
        """While all of the job's processes lived."""
        return self.prometheus.scraped(self._selector("tidemill_waterlevel"))[1]

    def samples(self, name: str, **labels: str) -> list[Series]:
        return self.prometheus.samples(self._selector(name, **labels), self.last)

    def over(self, expr: str) -> list[Series]:
        """As a panel asks."""
        return self.prometheus.over(expr, self.first, self.last)

    def _selector(self, name: str, **labels: str) -> str:
        return f"{name}{{{','.join(f'{key}="{value}"' for key, value in {**self.where, **labels}.items())}}}"


def a_panel_has_data(scraped: Scraped, asked: Asked, lacking: Collection[str], **chosen: str) -> None:
    """`chosen` are the variables of the board that somebody has set; `lacking` is what the place of this job has not."""
    expr = filled(asked.query.expr, interval=f"{10 * scraped.interval_seconds:g}s", **chosen)
    assert has_data(scraped.over(expr)) or asked.panel.empty in lacking, expr


def rules_hold(scraped: Scraped, firing: Collection[str] = ()) -> None:
    """None fails, none fires but these, and what is recorded has data."""
    assert len([rule for rule in scraped.rules if rule["type"] == "alerting"]) > 10
    assert [rule["name"] for rule in scraped.rules if rule["health"] != "ok" or rule.get("lastError")] == []
    assert {rule["name"] for rule in scraped.rules if rule["type"] == "alerting" and rule["state"] == "firing"} <= set(firing)
    for rule in scraped.rules:
        if rule["type"] == "recording":
            assert has_data(scraped.over(rule["name"])), rule["name"]


def counted_as_stored(scraped: Scraped, counter: str, happened: Iterable[float]) -> None:
    """A sample's time is when it was asked for; it was there when the scrape was over. Where nothing happened meanwhile one answer is right."""
    times = sorted(happened)
    (series,) = scraped.samples(counter)
    (durations,) = scraped.samples("scrape_duration_seconds", instance=series.labels["instance"])
    took = dict(durations.samples)
    bounds = [(bisect_right(times, at), value, bisect_right(times, at + took[at])) for at, value in series.samples]
    assert [bound for bound in bounds if not bound[0] <= bound[1] <= bound[2]] == []
    assert len({value for before, value, after in bounds if before == after}) > 1, "exactly, at more than one number"


def no_execution_was_lost(scraped: Scraped) -> None:
    """And the waterlevel rose, fell to 0, and never below, at any scrape."""
    (lost,) = scraped.samples("tidemill_executions_lost")
    assert {value for _, value in lost.samples} == {0.0}
    (level,) = scraped.samples("tidemill_waterlevel")
    assert min(value for _, value in level.samples) == 0
    assert max(value for _, value in level.samples) > 0


def all_is_declared(series: Iterable[Series], of_the_scrape: Collection[str], process_of: Callable[[Mapping[str, str]], str]) -> None:
    """Names, labels and the process that exports them, of series that are the product's."""
    parts = ("_bucket", "_sum", "_count")
    declared = {metric.name + part: metric for metric in ALL for part in (parts if metric.kind is Kind.HISTOGRAM else ("",))}
    wrong = []
    for labels in (one.labels for one in series):
        name = labels["__name__"]
        allowed = {*declared[name].labels, *of_the_scrape, "__name__", "le"} if name in declared else set()
        if not set(labels) <= allowed or process_of(labels) != declared[name].process:
            wrong.append(labels)
    assert wrong == []

"""What a real Prometheus scraped of the tiny job, against the job's own books; and every panel and rule, asked of that same data."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

import pytest

from helm.dashboards.boards import Asked, filled, queries
from tests.end_to_end.running import conductor
from tests.end_to_end.tiny_job import Finished
from tests.scraping import INTERVAL_SECONDS, Prometheus, QueryFailed, has_data
from tidemill.telemetry.catalogue import ALL
from tidemill.telemetry.events import AnyEvent, ExecutionEnded, FlipEnded
from tidemill.telemetry.metric import Kind
from tidemill.telemetry.roles import role_spans

pytestmark = pytest.mark.timeout(400)

TOLERANCE = 0.02
NEEDS_A_CLUSTER = ("TidemillOperatorWithoutLeader",)
"""It fires where there is no operator, as here."""

OF_THE_SCRAPE = {"job", "instance", "process", "cell"}


def counted(prometheus: Prometheus, selector: str, at: float) -> dict[str, float]:
    """Last samples by the label that tells them apart, or by cell."""
    return {
        series.labels.get("state") or series.labels.get("reason") or series.labels.get("cell", ""): series.last
        for series in prometheus.samples(selector, at)
    }


def hours(events: list[AnyEvent], until: float) -> dict[tuple[str, str], float]:
    """By cell and role, as the report adds them up, of what had happened until then."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for span in role_spans([event for event in events if event.time <= until], until):
        found[span.cell, span.role] += (span.end - span.start) / 3600
    return found


def test_every_process_was_scraped(finished: Finished) -> None:
    up = {
        (s.labels["process"], s.labels.get("cell", ""))
        for s in finished.prometheus.samples("up", finished.last_scrape)
        if any(v for _, v in s.samples)
    }
    cells = [f"cell-{n}" for n in range(finished.manifest.spec.cells.count)]
    assert up == {("conductor", ""), ("gateway", ""), *((process, cell) for process in ("cell", "engine", "trainer") for cell in cells)}


def test_hours_by_role_are_those_of_the_report(finished: Finished) -> None:
    """Agents measure them with their own clocks, the report adds up the conductor's events: compared at each cell's last scrape."""
    scraped: dict[tuple[str, str], tuple[float, float]] = {}
    for series in finished.prometheus.samples("tidemill_cell_role_seconds_total", finished.last_scrape):
        scraped[series.labels["cell"], series.labels["role"]] = series.last / 3600, series.samples[-1][0]
    told = {key: hours(finished.events, at).get(key, 0.0) for key, (_, at) in scraped.items()}
    for role in ("Rollout", "Training", "Flipping"):
        found, wanted = (sum(h for (_, of), h in by_cell.items() if of == role) for by_cell in ({k: h for k, (h, _) in scraped.items()}, told))
        assert found == pytest.approx(wanted, rel=TOLERANCE, abs=INTERVAL_SECONDS / 3600), role


def test_the_report_adds_up_the_hours_of_the_events_to_the_jobs_end(finished: Finished) -> None:
    by_role: dict[str, float] = defaultdict(float)
    for (_, role), h in hours(finished.events, finished.events[-1].time).items():
        by_role[role] += h
    assert finished.summary.hours_by_role == pytest.approx(by_role)


@pytest.mark.parametrize(("name", "moment"), [("dispatched", "created"), ("started", "started"), ("terminated", "ended")])
def test_at_every_scrape_executions_were_counted_exactly_as_the_store_had_them(name: str, moment: str, finished: Finished) -> None:
    """A sample's time is when it was asked for; the answer is computed within the second. Where nothing happened in it there is one right answer."""
    happened = sorted(row[0] for row in conductor(finished.job, f"SELECT {moment} FROM executions WHERE {moment} IS NOT NULL"))
    (series,) = finished.prometheus.samples(f"tidemill_executions_{name}_total", finished.last_scrape)
    bounds = [(bisect_right(happened, at), value, bisect_right(happened, at + INTERVAL_SECONDS)) for at, value in series.samples]
    assert [bound for bound in bounds if not bound[0] <= bound[1] <= bound[2]] == []
    assert len({value for before, value, after in bounds if before == after}) > 1, "exactly, at more than one number"


def test_the_last_scrape_saw_all_but_what_the_last_second_brought(finished: Finished) -> None:
    at, schedule = finished.last_scrape, finished.manifest.spec.schedule
    groups = counted(finished.prometheus, "tidemill_groups", at)
    assert sum(groups.values()) == finished.number("SELECT COUNT(*) FROM groups")
    assert 0 <= finished.number("SELECT COUNT(*) FROM groups WHERE state = 'Trained'") - groups["Trained"] <= schedule.groups_per_step
    (scored,) = finished.prometheus.samples('tidemill_execution_seconds_count{outcome="Scored"}', at)
    ended = [event.time for event in finished.events if isinstance(event, ExecutionEnded) and not event.dropped]
    assert sum(time <= at - INTERVAL_SECONDS for time in ended) <= scored.last <= len(ended)


def test_no_execution_was_lost_and_the_waterlevel_never_fell_below_zero_at_any_scrape(finished: Finished) -> None:
    (lost,) = finished.prometheus.samples("tidemill_executions_lost", finished.last_scrape)
    assert {value for _, value in lost.samples} == {0.0}
    (level,) = finished.prometheus.samples("tidemill_waterlevel", finished.last_scrape)
    assert min(value for _, value in level.samples) == 0
    assert max(value for _, value in level.samples) > 0


def test_agents_and_conductor_tell_of_the_same_flips(finished: Finished) -> None:
    """Each process is asked at a moment of its own within the last second, in which cells may still return."""
    at, flips = finished.last_scrape, [event for event in finished.events if isinstance(event, FlipEnded)]
    settled = [flip for flip in flips if flip.time < at - 2 * INTERVAL_SECONDS]
    assert settled
    for name in ("tidemill_cell_flip{}_total", "tidemill_flip_seconds{}"):
        count, seconds = ("s", "_seconds") if "cell" in name else ("_count", "_sum")
        number = sum(series.last for series in finished.prometheus.samples(name.format(count), at))
        spent = sum(series.last for series in finished.prometheus.samples(name.format(seconds), at))
        assert len(settled) <= number <= len(flips), name
        assert sum(flip.seconds for flip in settled) - 1e-6 <= spent <= sum(flip.seconds for flip in flips) + 1e-6, name


def test_nothing_is_scraped_that_is_not_declared(finished: Finished) -> None:
    parts = ("_bucket", "_sum", "_count")
    declared = {metric.name + part: metric for metric in ALL for part in (parts if metric.kind is Kind.HISTOGRAM else ("",))}
    wrong = []
    for series in finished.prometheus.samples('{__name__=~"tidemill_.+"}', finished.last_scrape):
        name = series.labels["__name__"]
        allowed = {*declared[name].labels, *OF_THE_SCRAPE, "__name__", "le"} if name in declared else set()
        if not set(series.labels) <= allowed or series.labels["process"] != declared[name].process:
            wrong.append(series.labels)
    assert wrong == []


@pytest.mark.parametrize("asked", list(queries()), ids=str)
def test_a_panel_has_data_or_says_why_not(asked: Asked, finished: Finished) -> None:
    expr = filled(asked.query.expr, interval=f"{10 * INTERVAL_SECONDS:g}s")
    found = finished.prometheus.over(expr, finished.first_scrape, finished.last_scrape)
    assert asked.panel.empty or has_data(found), expr


def test_no_rule_fails_and_what_is_recorded_has_data(finished: Finished) -> None:
    rules = finished.rules
    assert len([rule for rule in rules if rule["type"] == "alerting"]) > 10
    assert [rule["name"] for rule in rules if rule["health"] != "ok" or rule.get("lastError")] == []
    assert {rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"} <= set(NEEDS_A_CLUSTER)
    for rule in rules:
        if rule["type"] == "recording":
            assert has_data(finished.prometheus.over(rule["name"], finished.first_scrape, finished.last_scrape)), rule["name"]


def test_a_query_that_is_none_is_found(finished: Finished) -> None:
    with pytest.raises(QueryFailed, match="parse error"):
        finished.prometheus.query("sum by (", finished.last_scrape)
    assert not has_data(finished.prometheus.query("tidemill_nonsense", finished.last_scrape))

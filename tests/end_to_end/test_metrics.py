"""What a real Prometheus scraped of the tiny job, against the job's own books; and every panel and rule, asked of that same data."""

from __future__ import annotations

from collections import defaultdict

import pytest

from helm.dashboards.boards import Asked
from helm.dashboards.panel import NEEDS_AN_OPERATOR
from tests.end_to_end.running import conductor
from tests.end_to_end.tiny_job import Finished
from tests.scraped import (
    EACH_COUNT,
    EACH_PANEL,
    MAY_LACK,
    Scraped,
    a_panel_has_data,
    all_is_declared,
    counted_as_stored,
    no_execution_was_lost,
    rules_hold,
)
from tests.scraping import INTERVAL_SECONDS, Prometheus, QueryFailed, has_data
from tidemill.telemetry.events import AnyEvent, ExecutionEnded, FlipEnded
from tidemill.telemetry.roles import role_spans

pytestmark = pytest.mark.timeout(400)

TOLERANCE = 0.02
NEEDS_A_CLUSTER = ("TidemillOperatorWithoutLeader",)
"""It fires where there is no operator, as here."""

OF_THE_SCRAPE = {"job", "instance", "process", "cell"}


@pytest.fixture
def scraped(finished: Finished) -> Scraped:
    return Scraped(finished.prometheus, INTERVAL_SECONDS, finished.rules)


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
    reported = {key: hours(finished.events, at).get(key, 0.0) for key, (_, at) in scraped.items()}
    by_role = {role: sum(h for (_, of), (h, _) in scraped.items() if of == role) for role in ("Rollout", "Training", "Flipping")}
    for role, found in by_role.items():
        wanted = sum(h for (_, of), h in reported.items() if of == role)
        assert found == pytest.approx(wanted, rel=TOLERANCE, abs=INTERVAL_SECONDS / 3600), role
    assert sum(by_role.values()) == pytest.approx(sum(reported.values()), rel=TOLERANCE)
    whole = finished.summary.wall_seconds / 3600 * len({cell for cell, _ in scraped})
    for role, told in finished.summary.hours_by_role.items():
        assert by_role[role] / whole == pytest.approx(told / whole, abs=TOLERANCE), f"utilization in {role}"


def test_the_report_adds_up_the_hours_of_the_events_to_the_jobs_end(finished: Finished) -> None:
    by_role: dict[str, float] = defaultdict(float)
    for (_, role), h in hours(finished.events, finished.events[-1].time).items():
        by_role[role] += h
    assert finished.summary.hours_by_role == pytest.approx(by_role)


@EACH_COUNT
def test_at_every_scrape_executions_were_counted_exactly_as_the_store_had_them(name: str, moment: str, finished: Finished, scraped: Scraped) -> None:
    rows = conductor(finished.job, f"SELECT {moment} FROM executions WHERE {moment} IS NOT NULL")
    counted_as_stored(scraped, f"tidemill_executions_{name}_total", (row[0] for row in rows))


def test_the_last_scrape_saw_all_but_what_the_last_second_brought(finished: Finished) -> None:
    at, schedule = finished.last_scrape, finished.manifest.spec.schedule
    groups = counted(finished.prometheus, "tidemill_groups", at)
    assert sum(groups.values()) == finished.number("SELECT COUNT(*) FROM groups")
    assert 0 <= finished.number("SELECT COUNT(*) FROM groups WHERE state = 'Trained'") - groups["Trained"] <= schedule.groups_per_step
    (scored,) = finished.prometheus.samples('tidemill_execution_seconds_count{outcome="Scored"}', at)
    ended = [event.time for event in finished.events if isinstance(event, ExecutionEnded) and not event.dropped]
    assert sum(time <= at - INTERVAL_SECONDS for time in ended) <= scored.last <= len(ended)


def test_no_execution_was_lost_and_the_waterlevel_never_fell_below_zero_at_any_scrape(scraped: Scraped) -> None:
    no_execution_was_lost(scraped)


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
    found = finished.prometheus.samples('{__name__=~"tidemill_.+"}', finished.last_scrape)
    all_is_declared(found, OF_THE_SCRAPE, lambda labels: labels["process"])


@EACH_PANEL
def test_a_panel_has_data_or_says_why_not(asked: Asked, scraped: Scraped) -> None:
    a_panel_has_data(scraped, asked, (*MAY_LACK, NEEDS_AN_OPERATOR))


def test_no_rule_fails_and_what_is_recorded_has_data(scraped: Scraped) -> None:
    rules_hold(scraped, NEEDS_A_CLUSTER)


def test_a_query_that_is_none_is_found(finished: Finished) -> None:
    with pytest.raises(QueryFailed, match="parse error"):
        finished.prometheus.query("sum by (", finished.last_scrape)
    assert not has_data(finished.prometheus.query("tidemill_nonsense", finished.last_scrape))

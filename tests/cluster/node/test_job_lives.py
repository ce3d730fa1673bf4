"""One job on a real cluster, from `helm install` to its last step; then its objects, its stores and the Prometheus that watched it are asked."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from helm.dashboards import operator as operators
from helm.dashboards.boards import Asked
from tests.cluster.calls import audited
from tests.cluster.cluster import Cluster
from tests.cluster.node import sequence, sound
from tests.cluster.node.installation import NAMESPACE, OPERATOR, RELEASE, run_helm
from tests.cluster.node.lived import ClusterJob, manifest
from tests.cluster.node.sequence import CELLS
from tests.cluster.node.strikes import ready
from tests.cluster.node.watching import INTERVAL_SECONDS, watching
from tests.cluster.pods import until
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
from tests.scraping import Series
from tidemill.telemetry.events import FlipEnded, JobEnded
from tidemill.wire.cell import Role

pytestmark = pytest.mark.timeout(1500)

FIRST_FLIPS = 6
OF_THE_SCRAPE = {"job", "instance", "namespace", "pod", "container", "endpoint", "service"}
WRITES = {"PATCH": "patch", "POST": "create", "PUT": "update", "DELETE": "delete"}
OPERATORS = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"


@dataclass
class Lived:
    """The job when it has ended, and what was noted of it before."""

    job: ClusterJob
    steps: int
    untouched: tuple[dict[str, str], dict[str, str]]
    reached: dict[str, str]
    scraped: Scraped


@pytest.fixture(scope="module")
def lived(cluster: Cluster, installed: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    with watching(cluster) as prometheus:
        job = ClusterJob(cluster, installed, "tiny")
        job.submit(manifest())
        sequence.start(job)
        untouched = sequence.flips_in_place(job, FIRST_FLIPS)
        reached = sequence.from_inside_a_sandbox(job)
        sequence.report(job, tmp_path_factory.mktemp("while it runs"))
        steps = sequence.finish(job)
        scraped = Scraped(prometheus, INTERVAL_SECONDS, prometheus.rules(), {"namespace": job.namespace})
        sequence.report(job, tmp_path_factory.mktemp("when it has ended"))
        yield Lived(job, steps, untouched, reached, scraped)


def of_operators(lived: Lived, name: str) -> list[Series]:
    return lived.scraped.prometheus.samples(f'{name}{{namespace="{NAMESPACE}"}}', lived.scraped.last)


def test_the_job_succeeds_and_its_objects_say_so(lived: Lived) -> None:
    status = lived.job.status
    assert (status["phase"], status["step"], status["progress"]) == ("Succeeded", lived.steps, f"{lived.steps}/{lived.steps}")
    assert status["completionTime"]
    assert [event.phase for event in lived.job.events() if isinstance(event, JobEnded)] == ["Succeeded"]
    assert len(status["flips"]) >= 4
    assert 0 < status["scores"]["last"] <= status["scores"]["best"] <= 1


def test_cells_flip_inside_their_pods(lived: Lived) -> None:
    before, after = lived.untouched
    assert before == after
    assert len(before) == len(CELLS)
    flips = [event for event in lived.job.events() if isinstance(event, FlipEnded)]
    assert Counter(flip.to for flip in flips).keys() == {Role.TRAINING, Role.ROLLOUT}
    assert all(list(flip.phases) == ["drain", "sleep", "join"] for flip in flips if flip.to is Role.TRAINING)


def test_its_stores_are_sound(lived: Lived) -> None:
    sound.no_execution_is_lost_and_none_counts_twice(lived.job)
    sound.every_step_is_committed_once_and_holds_every_micro_step_once(lived.job, lived.steps)
    sound.every_engine_loaded_exactly_what_was_published(lived.job)
    sound.no_epoch_was_acknowledged_with_two_roles(lived.job)


def test_a_sandbox_reaches_its_gateway_and_nothing_else(lived: Lived) -> None:
    reached = dict(lived.reached)
    assert reached.pop("gateway") == "open"
    assert reached.pop("token") == "none"
    assert len(reached) > 8
    assert not {name: said for name, said in reached.items() if said == "open" or said[0].isdigit()}


def test_the_operators_had_every_right_they_asked_for(cluster: Cluster, lived: Lived) -> None:
    calls = list(audited(cluster.audit, OPERATORS))
    assert {"gpucells", "pods", "rljobs/status", "leases"} <= {call.resource for call in calls}
    assert not {(call.verb, call.resource) for call in calls if call.status == 403}


def test_a_prometheus_that_the_charts_monitors_point_at_reaches_every_process(lived: Lived) -> None:
    found = lived.scraped.samples("up")
    up = {(s.labels["pod"], s.labels["endpoint"], s.labels.get("cell", "")) for s in found if any(value for _, value in s.samples)}
    of_cells = {(f"tiny-{cell}-0", endpoint, of) for cell in CELLS for endpoint, of in (("agent", ""), ("agent", cell), ("trainer", ""))}
    assert up == {("tiny-conductor-0", "http", ""), ("tiny-gateway-0", "http", "")} | of_cells
    assert len(found) == len(up)
    operators_up = of_operators(lived, "up")
    assert len({s.labels["pod"] for s in operators_up if s.last}) == len(operators_up) == 2


@EACH_COUNT
def test_at_every_scrape_executions_were_counted_exactly_as_the_store_had_them(name: str, moment: str, lived: Lived) -> None:
    rows = lived.job.query(f"SELECT {moment} FROM executions WHERE {moment} IS NOT NULL")
    counted_as_stored(lived.scraped, f"tidemill_executions_{name}_total", (row[0] for row in rows))


def test_no_execution_was_lost_and_the_waterlevel_never_fell_below_zero_at_any_scrape(lived: Lived) -> None:
    no_execution_was_lost(lived.scraped)


def test_nothing_is_scraped_that_is_not_declared(lived: Lived) -> None:
    process_of = {"metrics": "operator", "agent": "cell", "trainer": "trainer"}
    found = lived.scraped.prometheus.samples('{__name__=~"tidemill_.+"}', lived.scraped.last)
    all_is_declared(found, OF_THE_SCRAPE, lambda labels: process_of.get(labels["endpoint"]) or labels["pod"].split("-")[1])


@EACH_PANEL
def test_a_panel_has_data_of_the_job_that_is_chosen_or_says_why_not(asked: Asked, lived: Lived) -> None:
    of_operator = asked.board is operators.BOARD
    chosen = {"namespace": NAMESPACE} if of_operator else {"namespace": lived.job.namespace, "job": lived.job.name}
    a_panel_has_data(lived.scraped, asked, MAY_LACK, **chosen)


def test_no_rule_fails_or_fires_and_what_is_recorded_has_data(lived: Lived) -> None:
    rules_hold(lived.scraped)


def test_one_operator_leads_and_makes_passes_of_which_none_fails(lived: Lived) -> None:
    leading = sorted(series.last for series in of_operators(lived, "tidemill_operator_leader"))
    assert leading == [0.0, 1.0]
    assert sum(series.last for series in of_operators(lived, "tidemill_operator_reconcile_seconds_count")) > 10
    assert sum(series.last for series in of_operators(lived, "tidemill_operator_reconcile_errors_total")) == 0


def test_operators_count_every_write_by_the_api_servers_answer(cluster: Cluster, lived: Lived) -> None:
    """Since they last started: on a machine that is too busy a leader loses its lease and begins anew. Renewals of leases are left out."""
    prometheus = lived.scraped.prometheus
    started = {pod["metadata"]["name"]: began(pod) for pod in sequence.operator_pods(lived.job)}

    def answered() -> Counter[tuple[str, str]]:
        calls = (call for call in audited(cluster.audit, OPERATORS) if call.writes and call.resource != "leases")
        return Counter((call.verb, str(call.status)) for call in calls if call.at >= started.get(call.pod, math.inf))

    before, now = answered(), time.time()
    until(lambda: prometheus.scraped("tidemill_operator_leader")[1] > now, "the operators are scraped again")
    counted = Counter[tuple[str, str]]()
    for series in prometheus.samples('tidemill_operator_api_calls_total{kind!="Lease", code!="none"}', time.time()):
        if series.labels["verb"] in WRITES and series.samples[-1][0] > now:
            counted[WRITES[series.labels["verb"]], series.labels["code"]] += int(series.last)
    assert counted["patch", "200"] > 10
    assert before <= counted
    assert counted <= answered()


def began(pod: dict[str, Any]) -> float:
    """When its container last started, in unix seconds."""
    [container] = pod["status"]["containerStatuses"]
    return datetime.fromisoformat(container["state"]["running"]["startedAt"]).timestamp()


def test_the_charts_own_test_passes(cluster: Cluster, lived: Lived) -> None:
    assert "Phase:          Succeeded" in run_helm(cluster, "test", RELEASE, "--timeout=120s")


def test_a_job_that_is_deleted_while_it_starts_leaves_nothing(cluster: Cluster, lived: Lived) -> None:
    job = ClusterJob(cluster, lived.job.namespace, "brief")
    short = manifest()
    short["metadata"]["name"] = job.name
    job.submit(short)
    job.wait_for("the conductor is ready", lambda: any(ready(pod) for pod in job.pods("conductor").values()))
    job.kubectl("delete", "rljob", job.name, "--timeout=60s")
    job.wait_for("no pod is left", lambda: not job.pods(), 60)
    kinds = "statefulsets,services,configmaps,serviceaccounts,persistentvolumeclaims,networkpolicies,poddisruptionbudgets,roles,rolebindings,gpucells"
    job.wait_for("nothing is left", lambda: not job.get(kinds, f"--selector=tidemill.dev/job={job.name}")["items"], 60)

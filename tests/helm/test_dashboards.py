"""The dashboards: what is committed is what the modules say, every query asks for what is declared, every panel says what to do."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from helm.dashboards.__main__ import FOLDER
from helm.dashboards.boards import BOARDS, Asked, filled, queries
from helm.dashboards.build import as_json
from helm.dashboards.names import VLLM, metrics_in
from helm.dashboards.panel import Board, Panel
from tests.helm.chart import ROOT, context_of, only, render
from tests.helm.test_rules import ALERTS, RULES
from tests.prometheus import program
from tidemill.api.loading import load_rljob
from tidemill.telemetry.catalogue import ALL
from tidemill.telemetry.labels import LABELS
from tidemill_operator import cells, conductor, gateway

EACH = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.title)
DECLARED = {metric.name: metric for metric in ALL}
OF_THE_SCRAPE = {"cluster", "namespace", "le", "alertname", "alertstate"}
NOT_DRAWN = {
    "tidemill_logprob_mean",  # these two move with the step and not with time: TensorBoard draws the second
    "tidemill_learning_rate",
    "tidemill_cell_granted_role",  # what cells do is drawn; how far they are behind is drawn from epochs
}


def written(board: Board) -> Any:
    return json.loads((FOLDER / f"{board.uid}.json").read_text())


def values_of(key: str, document: Any) -> Iterator[Any]:
    if isinstance(document, dict):
        for name, value in document.items():
            if name == key:
                yield value
            yield from values_of(key, value)
    elif isinstance(document, list):
        for value in document:
            yield from values_of(key, value)


def test_the_files_are_what_the_modules_say() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {f"{board.uid}.json" for board in BOARDS}
    for board in BOARDS:
        assert (FOLDER / f"{board.uid}.json").read_text() == as_json(board), "write them anew: .venv/bin/python -m helm.dashboards"


@EACH
def test_the_sdk_reads_every_field_that_is_written(board: Board) -> None:
    document = written(board)
    assert json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder)) == document


@EACH
def test_the_data_source_is_a_variable_and_no_id_is_hard_wired(board: Board) -> None:
    document = written(board)
    used = [source for source in values_of("datasource", document) if source is not None]
    assert used
    assert {source["uid"] for source in used} == {"$datasource"}
    assert (
        document["templating"]["list"][0] | {"name": "datasource", "type": "datasource", "query": "prometheus"} == document["templating"]["list"][0]
    )


@EACH
def test_a_single_number_is_the_newest(board: Board) -> None:
    stats = [panel for panel in written(board)["panels"] if panel["type"] == "stat"]
    assert all(panel["options"]["reduceOptions"]["calcs"] == ["lastNotNull"] for panel in stats)


@EACH
def test_panels_lie_beside_each_other_and_inside_the_page(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in written(board)["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


@EACH
def test_every_panel_has_a_unit_and_says_what_it_means_and_is_called_so_once(board: Board) -> None:
    for row in board.rows:
        assert len({panel.title for panel in row.panels}) == len(row.panels)
    for panel in board.panels:
        assert panel.unit, panel.title
        assert re.fullmatch(r"[A-Z0-9`].+[.]", panel.description, flags=re.DOTALL), panel.title


@pytest.mark.parametrize("asked", tuple(queries()), ids=str)
def test_a_query_asks_for_declared_metrics_by_their_labels(asked: Asked) -> None:
    expr = asked.query.expr
    names = metrics_in(expr)
    if "ALERTS{" not in expr:
        assert names
    assert names <= DECLARED.keys() | VLLM
    grouped = {label.strip() for group in re.findall(r"(?:by|on|ignoring) \(([^)]*)\)", expr) for label in group.split(",")}
    matched = set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)\"", expr))
    known = {label for name in names - VLLM for label in DECLARED[name].labels} | OF_THE_SCRAPE | ({"job", "cell"} if not names - VLLM else set())
    assert grouped | matched <= known
    assert set(re.findall(r"\{\{(\w+)\}\}", asked.query.legend)) <= known & set(LABELS) | {"namespace"}


def test_prometheus_can_parse_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"query_{number}", "expr": filled(asked.query.expr)} for number, asked in enumerate(queries())]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run([program("promtool"), "check", "rules", "--lint=none", str(tmp_path / "queries.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_declared_metric_is_drawn_or_watched() -> None:
    asked = {name for query in queries() for name in metrics_in(query.query.expr)}
    asked |= {name for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] for name in metrics_in(rule["expr"])}
    assert set(DECLARED) - asked == NOT_DRAWN


@EACH
def test_links_lead_to_boards_and_runbooks_that_exist_and_hand_on_what_is_chosen_there(board: Board) -> None:
    boards = {other.uid: other for other in BOARDS}
    for panel in board.panels:
        assert set(re.findall(r"Tidemill[A-Z]\w+", panel.description)) <= set(ALERTS), panel.title
        if panel.link:
            assert set(panel.variables) <= set(boards[panel.link].variables)
            assert all(_labels_of(panel) >= {label} for label in panel.variables), panel.title
            assert {*panel.variables, *board.variables} >= set(boards[panel.link].variables), panel.title


def _labels_of(panel: Panel) -> set[str]:
    """Those that every series of the panel has."""
    of_each = []
    for query in panel.queries:
        groups = re.findall(r"by \(([^)]*)\)", query.expr)
        of_each.append({label.strip() for label in groups[0].split(",")} if groups else set(DECLARED[next(iter(metrics_in(query.expr)))].labels))
    return set.intersection(*of_each)


def test_the_chart_ships_them_for_grafanas_sidecar_when_asked() -> None:
    def shipped(values: dict[str, Any]) -> list[Any]:
        return [m for m in render(values) if m["kind"] == "ConfigMap" and m["metadata"]["name"].endswith("-dashboard")]

    assert shipped({}) == []
    maps = shipped({"dashboards": {"enabled": True, "label": "grafana", "labelValue": "yes", "namespace": "monitoring"}})
    assert {name: text for m in maps for name, text in m["data"].items()} == {f"{b.uid}.json": as_json(b) for b in BOARDS}
    assert all(m["metadata"]["labels"]["grafana"] == "yes" and m["metadata"]["namespace"] == "monitoring" for m in maps)


def test_the_chart_ships_the_rules_with_links_to_the_runbooks_where_they_are_read() -> None:
    rule = only(render({"prometheusRule": {"enabled": True, "runbooks": "https://example.com/r.md"}}), "PrometheusRule")
    expected = yaml.safe_load(RULES.read_text().replace("docs/runbooks.md", "https://example.com/r.md"))
    assert rule["spec"]["groups"] == expected["groups"]


def test_jobs_are_scraped_in_the_namespaces_that_are_served_with_their_own_labels() -> None:
    def jobs(values: dict[str, Any]) -> Any:
        return only(render({"podMonitor": {"enabled": True}, **values}), "PodMonitor", "tidemill-operator-jobs")["spec"]

    assert jobs({})["namespaceSelector"] == {"any": True}
    assert jobs({"namespaces": ["red", "blue"]})["namespaceSelector"] == {"matchNames": ["red", "blue"]}
    assert jobs({"singleNamespace": True})["namespaceSelector"] == {"matchNames": ["tidemill-system"]}
    endpoints = jobs({})["podMetricsEndpoints"]
    assert all(endpoint["honorLabels"] for endpoint in endpoints)
    job = load_rljob(ROOT / "examples" / "quickstart" / "rljob.yaml")
    context = context_of(job, "default")
    pods = [cells.template(context, cells.wanted(context)[0], 0), conductor.template(context), gateway.template(context)]
    served = {port["name"] for pod in pods for container in pod["spec"]["containers"] for port in container.get("ports", ())}
    assert {endpoint["port"] for endpoint in endpoints} == served
    (engines,) = (endpoint for endpoint in endpoints if endpoint.get("path"))
    kept = {"sourceLabels": ["__meta_kubernetes_pod_label_tidemill_dev_rank"], "regex": "0", "action": "keep"}
    assert engines["relabelings"][0] == kept, "other nodes of a cell have no engine that answers"


@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_operators_are_scraped_once_whatever_is_enabled(monitor: str) -> None:
    def monitors(*enabled: str) -> list[str]:
        manifests = render({name: {"enabled": True} for name in enabled})
        return [m["kind"] for m in manifests if m["kind"].endswith("Monitor") and m["metadata"]["name"] == "tidemill-operator"]

    assert monitors(monitor) == [monitor[0].upper() + monitor[1:]]
    assert monitors("podMonitor", "serviceMonitor") == ["ServiceMonitor"]

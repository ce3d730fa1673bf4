"""Every query of every panel, asked of a real Prometheus that has scraped every declared metric: those of GPUs, operators and failures, too."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

import pytest

from helm.dashboards.boards import Asked, filled, queries
from helm.dashboards.names import VLLM
from tests.scraping import Prometheus, prometheus
from tidemill.telemetry.catalogue import ALL
from tidemill.telemetry.metric import Kind, Metric

SCRAPES = 6
SAMPLES = {
    "job": ("mill",),
    "cell": ("cell-0", "cell-1"),
    "rank": ("0",),
    "gpu": ("0", "1"),
    "xid": ("79",),
    "device": ("mlx5_0",),
    "port": ("1",),
    "code": ("200", "500"),
    "verb": ("GET", "PATCH"),
    "kind": ("pods",),
    "child": ("engine", "trainer"),
    "phase": ("drain", "sleep"),
    "to": ("Training", "Rollout"),
    "reason": ("Evaluator",),
    "activity": ("Compute",),
    "wire": ("chat",),
}
"""Values of labels that a metric does not declare."""

GAUGES = {"tidemill_cell_usable": 0.0, "tidemill_cell_silent_seconds": 60.0, "tidemill_rdma_active": 0.0}
"""What something is when it is wrong; 1 otherwise."""


def test_every_declared_metric_is_on_the_page() -> None:
    text = page(1.0)
    assert not [metric.name for metric in ALL if f"\n{metric.name}" not in f"\n{text}"]


def page(seconds: float) -> str:
    """All metrics as they are after so many seconds: counters count one a second."""
    lines = [line for metric in ALL for line in _lines(metric, seconds)]
    lines += [f'{name}{{job="mill",cell="{cell}"}} {seconds}' for name in sorted(VLLM) for cell in SAMPLES["cell"]]
    return "\n".join(lines) + "\n"


def _lines(metric: Metric, seconds: float) -> Iterator[str]:
    for values in product(*(metric.values.get(label) or SAMPLES[label] for label in metric.labels)):
        labels = ",".join(f'{name}="{value}"' for name, value in zip(metric.labels, values, strict=True))
        if metric.kind is Kind.HISTOGRAM:
            for bound in (*metric.buckets, math.inf):
                yield f'{metric.name}_bucket{{{labels},le="{"+Inf" if bound == math.inf else bound}"}} {seconds}'.replace("{,", "{")
            yield f"{metric.name}_sum{{{labels}}} {seconds}"
            yield f"{metric.name}_count{{{labels}}} {seconds}"
        else:
            yield f"{metric.name}{{{labels}}} {seconds if metric.kind is Kind.COUNTER else GAUGES.get(metric.name, 1.0)}"


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    began, asked = time.monotonic(), threading.Semaphore(0)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(time.monotonic() - began).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)
            asked.release()

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target = {"targets": [f"127.0.0.1:{server.server_port}"], "labels": {"namespace": "rl", "cluster": "blue"}}
    folder: Path = tmp_path_factory.mktemp("prometheus")
    try:
        with prometheus(folder, {"job_name": "all", "honor_labels": True, "static_configs": [target]}) as running:
            for _ in range(SCRAPES):
                assert asked.acquire(timeout=30)
            yield running
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("asked", [asked for asked in queries() if "ALERTS{" not in asked.query.expr], ids=str)
def test_a_query_has_data_when_its_metrics_are_there_also_when_everything_is_chosen_by_name(asked: Asked, scraped: Prometheus) -> None:
    now = time.time()
    for chosen in ({}, {"cluster": "blue", "namespace": "rl", "job": "mill", "cell": "cell-1"}):
        found = scraped.query(filled(asked.query.expr, "4s", **chosen), now)
        assert found, chosen
        assert any(not math.isnan(series.last) for series in found), chosen
        named = {name for name in ("cluster", "namespace", "job", "cell") if f"{{{{{name}}}}}" in asked.query.legend}
        assert all(named <= set(series.labels) for series in found)


@pytest.mark.parametrize("asked", [asked for asked in queries() if "ALERTS{" not in asked.query.expr], ids=str)
def test_a_query_has_nothing_of_what_was_not_chosen(asked: Asked, scraped: Prometheus) -> None:
    other = {"cluster": "red", "namespace": "other", "job": "other", "cell": "other"}
    found = scraped.query(filled(asked.query.expr, "4s", **other), time.time())
    assert not found or ("vector(0)" in asked.query.expr and [series.last for series in found] == [0.0])

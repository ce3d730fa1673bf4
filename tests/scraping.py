"""A real Prometheus beside what is tested: it scrapes, evaluates the chart's rules, and answers queries afterwards."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port
from tests.prometheus import program
from tidemill.local.parent import die_with_parent

RULES = Path(__file__).parents[1] / "helm" / "tidemill" / "rules" / "tidemill.yaml"
INTERVAL_SECONDS = 1.0
ENGINE_INTERVAL = "5s"
START_SECONDS = 30.0

type Labels = dict[str, str]


class QueryFailed(Exception):
    """Prometheus does not answer this query. The message has its words."""


@dataclass(frozen=True, slots=True)
class Series:
    labels: Labels
    samples: list[tuple[float, float]]  # unix seconds, value

    @property
    def last(self) -> float:
        return self.samples[-1][1]


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expr: str, at: float) -> list[Series]:
        """Raises `QueryFailed`."""
        told = self._ask("/api/v1/query", query=expr, time=f"{at:.3f}")["result"]
        if isinstance(told[0] if told else {}, (int, float)):  # a scalar
            return [Series({}, [(float(told[0]), float(told[1]))])]
        return [Series(one["metric"], [(float(t), float(v)) for t, v in one.get("values", [one.get("value")])]) for one in told]

    def samples(self, selector: str, at: float, window: str = "1h") -> list[Series]:
        """As they were scraped."""
        return self.query(f"{selector}[{window}]", at)

    def over(self, expr: str, start: float, end: float, points: int = 60) -> list[Series]:
        """As a panel asks. Raises `QueryFailed`."""
        step = max(1.0, (end - start) / points)
        told = self._ask("/api/v1/query_range", query=expr, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:.3f}")["result"]
        return [Series(one["metric"], [(float(t), float(v)) for t, v in one["values"]]) for one in told]

    def scraped(self, selector: str) -> tuple[float, float]:
        """When a series of these was scraped first and last."""
        times = [t for series in self.samples(selector, time.time()) for t, _ in series.samples]
        return min(times), max(times)

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._ask("/api/v1/rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("/api/v1/targets")["activeTargets"]
        return found

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _ask(self, path: str, **parameters: str) -> Any:
        try:
            with urllib.request.urlopen(
                f"{self._url}{path}", urllib.parse.urlencode(parameters).encode() if parameters else None, timeout=30
            ) as answer:
                return json.loads(answer.read())["data"]
        except urllib.error.HTTPError as cause:
            raise QueryFailed(f"{parameters.get('query', path)}: {json.loads(cause.read()).get('error')}") from cause


def has_data(found: list[Series]) -> bool:
    return any(not math.isnan(value) for series in found for _, value in series.samples)


@contextmanager
def prometheus(folder: Path, *scrape_configs: dict[str, Any]) -> Iterator[Prometheus]:
    """It lives as long as the block, its data as long as `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    every = f"{INTERVAL_SECONDS:g}s"
    configuration = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(RULES)],
        "scrape_configs": list(scrape_configs),
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    port = free_port()
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=die_with_parent)
    try:
        made = Prometheus(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + START_SECONDS
        while not made.ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"prometheus does not start:\n{(folder / 'prometheus.log').read_text()}")
            time.sleep(0.05)
        yield made
    finally:
        process.kill()
        process.wait()


def of_local_job(workdir: Path) -> tuple[dict[str, Any], ...]:
    """As docs/running.md tells people to write it; engines less often, whose pages are long and whose cores the job needs."""

    def scrape(name: str, action: str, **more: str) -> dict[str, Any]:
        found = {"files": [str(workdir / "prometheus.json")], "refresh_interval": "1s"}
        chosen = {"source_labels": ["process"], "regex": "engine", "action": action}
        return {"job_name": name, "honor_labels": True, "file_sd_configs": [found], "relabel_configs": [chosen], **more}

    return scrape("tidemill", "drop"), scrape("engines", "keep", scrape_interval=ENGINE_INTERVAL)

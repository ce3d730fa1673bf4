"""What a local job's processes say of themselves, read from their metrics as a Prometheus would, and compared with a while ago."""

from __future__ import annotations

import json
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tidemill.local.scraping import FILE
from tidemill.report.detail import Measured
from tidemill.telemetry.catalogue import cell, gateway, trainer
from tidemill.telemetry.metric import Metric

PROCESSES = ("gateway", "cell", "trainer")
ANSWER_SECONDS = 1.0
WINDOW_SECONDS = 30.0

type Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(folder: Path) -> Series:
    """Of all processes of the job that answer."""
    found: Series = {}
    for url in _urls(folder):
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                text = answer.read().decode()
        except OSError:
            continue  # it starts, or has ended
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def _urls(folder: Path) -> Iterator[str]:
    try:
        targets = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return  # the job does not run
    for target in targets:
        if target["labels"]["process"] in PROCESSES:
            yield f"http://{target['targets'][0]}/metrics"


@dataclass(slots=True)
class Scraper:
    """Reads again each time it is asked; shares and rates are over the last half minute, or since it first read."""

    folder: Path
    clock: Callable[[], float]
    _reads: deque[tuple[float, Series]] = field(default_factory=deque)

    def measure(self) -> Measured | None:
        now, series = self.clock(), read(self.folder)
        if not series:
            self._reads.clear()
            return None
        self._reads.append((now, series))
        while len(self._reads) > 2 and self._reads[1][0] < now - WINDOW_SECONDS:
            self._reads.popleft()
        before, older = self._reads[0]
        return measured(older if before < now else {}, series, now - before)


def measured(before: Series, now: Series, seconds: float) -> Measured:
    """With nothing from before, shares are those since the processes began, and nothing is said of rates."""

    def total(metric: Metric) -> float:
        return sum(value for _, value in _of(metric, now))

    def rate(metric: Metric) -> float:
        return max(0.0, total(metric) - sum(value for _, value in _of(metric, before))) / seconds if before else 0.0

    return Measured(
        roles={labels["cell"]: labels["role"] for labels, value in _of(cell.ROLE, now) if value},
        idle=idle_shares(before, now),
        calls_per_second=rate(gateway.CALLS),
        tokens_per_second=rate(gateway.SAMPLED_TOKENS),
        live_calls=int(total(gateway.LIVE_CALLS)),
        waiting_calls=int(total(gateway.WAITING_CALLS)),
        held_turns=int(total(gateway.HELD_TURNS)),
    )


def idle_shares(before: Series, now: Series) -> dict[str, dict[str, float]]:
    """By cell and cause, of the cell's time."""
    spent = {cell_name: 0.0 for labels, _ in _of(cell.ROLE_SECONDS, now) for cell_name in [labels["cell"]]}
    for labels, seconds in _increases(cell.ROLE_SECONDS, before, now):
        spent[labels["cell"]] += seconds
    shares: dict[str, dict[str, float]] = {name: {} for name in sorted(spent)}
    for metric in (cell.IDLE_SECONDS, trainer.IDLE_SECONDS):
        for labels, seconds in _increases(metric, before, now):
            name, cause = labels["cell"], labels["cause"]
            if spent.get(name) and seconds > 0:
                shares[name][cause] = shares[name].get(cause, 0.0) + seconds / spent[name]
    return shares


def _increases(metric: Metric, before: Series, now: Series) -> Iterable[tuple[dict[str, str], float]]:
    """A process that was restarted counts from nothing."""
    for labels, value in _of(metric, now):
        earlier = before.get((metric.name, frozenset(labels.items())), 0.0)
        yield labels, value - earlier if value >= earlier else value


def _of(metric: Metric, series: Series) -> Iterator[tuple[dict[str, str], float]]:
    return ((dict(labels), value) for (name, labels), value in series.items() if name == metric.name)

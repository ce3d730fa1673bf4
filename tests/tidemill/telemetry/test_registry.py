from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Histogram, generate_latest
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tests.tidemill.telemetry.exported import OPENMETRICS, series, undeclared, value
from tidemill.telemetry.catalogue import PROCESSES, cell, conductor, gateway, of
from tidemill.telemetry.metric import Kind
from tidemill.telemetry.registry import Registry, Undeclared, described

FIXED = {"job": "tiny", "cell": "cell-1", "rank": "0"}


def filled(process: str) -> Registry:
    fixed = {label: text for label, text in FIXED.items() if process in ("cell", "trainer") or label == "job"}
    registry = Registry(process, **fixed)
    for metric in of(process):
        if metric.kind is Kind.HISTOGRAM:
            registry.histogram(metric)
        else:
            free = tuple("x" for label in metric.labels if label not in fixed)
            registry.read(metric, lambda free=free: {free: 1.5} if free else 1.5)
    return registry


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_a_page_is_what_prometheus_reads_and_has_everything_that_is_declared(process: str, accept: str) -> None:
    registry = filled(process)
    assert registry.missing == ()
    page, content_type = registry.page(accept)
    assert content_type.startswith(accept.partition(";")[0] or "text/plain")
    if accept:
        families = list(text_string_to_metric_families(page.decode()))
        assert {(f.name, f.type, f.unit) for f in families} == {(m.family, str(m.kind), m.unit) for m in of(process)}
        assert {f.documentation for f in families} == {described(metric) for metric in of(process)}


def test_nothing_is_exported_that_is_not_declared_for_the_process_as_this_kind_and_once() -> None:
    registry = Registry("gateway", job="tiny")
    for export in (registry.gauge, registry.histogram):
        with pytest.raises(Undeclared, match="tidemill_gateway_calls_total"):
            export(gateway.CALLS)
    with pytest.raises(Undeclared, match="tidemill_cell_epoch"):
        registry.read(cell.EPOCH, lambda: 1)
    registry.counter(gateway.CALLS)
    with pytest.raises(Undeclared):
        registry.read(gateway.CALLS, lambda: 1)


def test_what_is_not_known_is_absent_and_what_can_only_be_zero_is_zero() -> None:
    registry = Registry("conductor", job="tiny")
    registry.read(conductor.STEP_SCORE, lambda: None)
    registry.read(conductor.EXECUTIONS, lambda: {"Running": 3})
    registry.histogram(conductor.FLIP_SECONDS).of("Training").observe(2.0)
    found = series(registry.page(OPENMETRICS)[0].decode())
    assert not [name for name, _ in found if name == "tidemill_step_score"]
    assert value(found, "tidemill_executions", state="Running") == 3
    assert value(found, "tidemill_executions", state="Dropped") == 0
    assert value(found, "tidemill_flip_seconds_count", to="Training") == 1
    assert value(found, "tidemill_flip_seconds_count", to="Rollout") == 0
    assert not [name for name, _ in found if name.endswith("_created")]


def test_the_check_of_a_page_finds_what_is_not_declared() -> None:
    good = 'tidemill_gateway_requests_total{code="200",job="tiny",wire="chat"} 1\n'
    page = "# TYPE tidemill_gateway_requests counter\n{}# EOF\n"
    assert undeclared(page.format(good), "gateway") == []
    assert undeclared(page.format(good), "cell") == ["tidemill_gateway_requests"]
    assert undeclared(page.format(good.replace("code=", "execution=")), "gateway") != []
    assert undeclared(page.replace("counter", "gauge").format(good.replace("_total", "")), "gateway") != []


@given(st.dictionaries(st.text(min_size=1), st.floats(allow_nan=False), max_size=4))
def test_labels_and_numbers_are_written_as_prometheus_client_writes_them(numbers: dict[str, float]) -> None:
    registry = Registry("conductor", job='a\\b\n"c')
    registry.read(conductor.CELL_GRANTED_EPOCH, lambda: numbers)

    class Theirs(Collector):
        def collect(self) -> list[GaugeMetricFamily]:
            family = GaugeMetricFamily(conductor.CELL_GRANTED_EPOCH.name, described(conductor.CELL_GRANTED_EPOCH), labels=("job", "cell"))
            for name, number in numbers.items():
                family.add_metric(['a\\b\n"c', name], number)
            return [family]

    theirs = CollectorRegistry()
    theirs.register(Theirs())

    def as_told(page: bytes) -> list[str]:
        """In one order of labels, and numbers as they are meant."""
        lines = page.decode().split("\n")
        return [
            ",".join(sorted(line.rpartition(" ")[0].replace("{", ",").replace("}", ",").split(","))) + str(float(line.rpartition(" ")[2]))
            if line and line[0] != "#"
            else line
            for line in lines
        ]

    assert as_told(registry.page()[0]) == as_told(generate_latest(theirs))


@given(st.lists(st.floats(0, 1000) | st.sampled_from(conductor.FLIP_SECONDS.buckets)))
def test_a_histogram_counts_as_prometheus_client_counts(observed: list[float]) -> None:
    metric = conductor.FLIP_SECONDS
    ours = Registry("conductor", job="tiny")
    theirs = CollectorRegistry()
    written = ours.histogram(metric)
    reference = Histogram(metric.name, "", ("job", "to"), buckets=metric.buckets, registry=theirs)
    for to in ("Rollout", "Training"):
        reference.labels("tiny", to)
    for seconds in observed:
        written.of("Training").observe(seconds)
        reference.labels("tiny", "Training").observe(seconds)
    told = series(ours.page(OPENMETRICS)[0].decode())
    assert told == {(s.name, frozenset(s.labels.items())): s.value for family in theirs.collect() for s in family.samples}


def test_numbers_that_are_none_are_told_as_prometheus_tells_them() -> None:
    registry = Registry("conductor", job="tiny")
    registry.read(conductor.CELL_GRANTED_EPOCH, lambda: {"a": math.nan, "b": math.inf, "c": -math.inf})
    lines = registry.page()[0].decode().splitlines()
    assert [line.rpartition(" ")[2] for line in lines[-3:]] == ["NaN", "+Inf", "-Inf"]

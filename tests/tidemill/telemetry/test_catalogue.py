from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tidemill.telemetry.catalogue import ALL, PROCESSES, of
from tidemill.telemetry.labels import LABELS
from tidemill.telemetry.metric import PREFIX, Kind, Metric

UNITS = {"seconds", "bytes", "ratio", "tokens", "watts", "celsius"}
FORBIDDEN = {"execution", "task", "turn", "group", "call", "lease", "step", "version", "pod", "instance", "le", "quantile"}
each = pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)


@each
def test_a_name_says_whose_it_is_in_which_unit_and_whether_it_only_grows(metric: Metric) -> None:
    assert re.fullmatch(PREFIX + r"[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.unit in UNITS | {""}
    assert not metric.unit or metric.family.endswith(f"_{metric.unit}")
    assert metric.unit or not metric.family.endswith(tuple(f"_{unit}" for unit in UNITS))
    assert not metric.family.endswith(("_count", "_sum", "_bucket", "_created", "_info"))


@each
def test_labels_are_few_explained_and_never_of_what_grows_with_the_work(metric: Metric) -> None:
    assert set(metric.labels) <= set(LABELS)
    assert not set(metric.labels) & FORBIDDEN
    assert len(metric.labels) == len(set(metric.labels)) <= 5
    assert set(metric.values) <= set(metric.labels)
    assert metric.process == "operator" or "job" in metric.labels
    assert metric.process not in ("cell", "trainer") or "cell" in metric.labels


@each
def test_help_is_a_sentence_and_the_formula_asks_for_what_it_explains(metric: Metric) -> None:
    assert metric.help[0].isupper() or metric.help[0].isdigit() or metric.help[1] in ":_ "
    assert metric.help.endswith(".")
    assert "\n" not in metric.help + metric.formula
    asked = set(re.findall(r"tidemill_[a-z_]+", metric.formula))
    assert {name.removesuffix(part) for name in asked for part in ("", "_bucket", "_sum", "_count")} & {
        metric.name
    } or "{__name__=~" in metric.formula


@each
def test_histograms_have_buckets_and_only_they(metric: Metric) -> None:
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_every_name_is_there_once_and_every_process_has_some() -> None:
    assert [name for name, count in Counter(metric.name for metric in ALL).items() if count > 1] == []
    assert {metric.process for metric in ALL} == set(PROCESSES)
    assert sum(len(of(process)) for process in PROCESSES) == len(ALL)


def test_every_label_that_is_explained_is_used() -> None:
    assert {label for metric in ALL for label in metric.labels} == set(LABELS)


def test_the_code_speaks_of_no_metric_that_is_not_declared() -> None:
    known = {metric.name for metric in ALL}
    spoken = {}
    root = Path(__file__).parents[3]
    for folder in ("tidemill", "rollout", "trainer", "cell", "operator", "bench"):
        for file in (root / folder).rglob("*.py"):
            for name in re.findall(r"""["']tidemill_([a-z]+_[a-z_]+)""", file.read_text()):
                name = f"tidemill_{name}"
                if not {name, *(name.removesuffix(part) for part in ("_bucket", "_sum", "_count"))} & known:
                    spoken[name] = file
    assert spoken == {}

"""What a page of metrics says, and whether all of it was declared."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tidemill.telemetry.catalogue import of
from tidemill.telemetry.metric import Kind

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

type Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(page: str) -> Series:
    """By name and labels, from a page in OpenMetrics format, which is checked on the way."""
    return {(s.name, frozenset(s.labels.items())): s.value for family in text_string_to_metric_families(page) for s in family.samples}


def value(found: Series, name: str, **labels: str) -> float:
    """The one series of this name that has these labels."""
    (only,) = [number for (other, has), number in found.items() if other == name and has >= set(labels.items())]
    return only


def undeclared(page: str, process: str) -> list[str]:
    """Names, kinds, units and labels of what the catalogue does not know of this process, or knows otherwise."""
    wrong = []
    declared = {metric.family: metric for metric in of(process)}
    for family in text_string_to_metric_families(page):
        metric = declared.get(family.name)
        if metric is None or (family.type, family.unit) != (metric.kind, metric.unit):
            wrong.append(family.name)
            continue
        more = {"le"} if metric.kind is Kind.HISTOGRAM else set()
        for sample in family.samples:
            labels = sample.labels
            if set(labels) - more != set(metric.labels) or any(labels[label] not in values for label, values in metric.values.items()):
                wrong.append(f"{sample.name} {labels}")
    return wrong

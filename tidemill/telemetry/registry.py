"""What one process exports, made from the catalogue. Figures that state already holds are read when somebody scrapes; only the rest is written."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate, product
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from tidemill.telemetry.catalogue import of
from tidemill.telemetry.metric import Kind, Metric

type Numbers = Mapping[str, float] | Mapping[tuple[str, str], float] | Mapping[tuple[str, ...], float]
type Reading = float | Numbers | None
"""One number, or numbers by the labels that are not fixed, or None: not known now, so absent."""

OPENMETRICS = "application/openmetrics-text"
_EOF = b"# EOF\n"

cast(Callable[[], None], disable_created_metrics)()  # beside every series one that says when it began, which nobody declared


class Undeclared(Exception):
    """Code exports what the catalogue does not know of this process, or twice what it knows. A defect."""


class Distribution:
    """A histogram's counts. prometheus_client's takes six times as long for an observation, because it locks; ours is for one thread."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # of each bucket alone, the last without a bound
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class Distributions:
    """A histogram that code writes, as `Family`."""

    def __init__(self, metric: Metric, fixed: Mapping[str, str]) -> None:
        self._metric = metric
        self._fixed = tuple(fixed.get(label) for label in metric.labels)
        self._children: dict[tuple[str, ...], Distribution] = {}
        self._series: dict[tuple[str, ...], list[str]] = {}
        for values in _closed(metric, fixed) if any(label is None for label in self._fixed) else ((),):
            self.of(*values)

    def of(self, *values: str) -> Distribution:
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = Distribution(self._metric.buckets)
            self._series[values] = list(self._named(values))
        return child

    def lines(self, openmetrics: bool) -> Iterator[str]:
        yield _heading(self._metric, openmetrics)
        for values, child in self._children.items():
            cumulative = list(accumulate(child.counts))
            numbers = [*map(float, cumulative), float(cumulative[-1]), child.total]
            yield "".join(f"{series} {_number(number)}\n" for series, number in zip(self._series[values], numbers, strict=True))

    def _named(self, values: tuple[str, ...]) -> Iterator[str]:
        name, labels = self._metric.name, _filled(self._fixed, values)
        for bound in (*self._metric.buckets, math.inf):
            yield _series(f"{name}_bucket", (*self._metric.labels, "le"), (*labels, _number(bound)))
        for part in ("count", "sum"):
            yield _series(f"{name}_{part}", self._metric.labels, labels)


class Family[Child: Counter | Gauge]:
    """A metric that code writes. `of` is the part of it with these values of the labels that are not fixed, in the order of the declaration."""

    def __init__(self, made: Child, metric: Metric, fixed: Mapping[str, str]) -> None:
        self._made = made
        self._labels = tuple(fixed.get(label) for label in metric.labels)
        self._children: dict[tuple[str, ...], Child] = {}
        for values in _closed(metric, fixed):
            self.of(*values)

    def of(self, *values: str) -> Child:
        child = self._children.get(values)
        if child is None:
            labels = _filled(self._labels, values)
            child = self._children[values] = cast(Child, self._made.labels(*labels)) if labels else self._made
        return child


class Registry:
    """`fixed` are the labels that are the same in the whole process, such as its job."""

    def __init__(self, process: str, **fixed: str) -> None:
        self._declared = {metric.name: metric for metric in of(process)}
        self._process = process
        self._fixed = fixed
        self._written = CollectorRegistry()
        self._ours: dict[str, _Read | Distributions] = {}
        self._known: set[str] = set()
        self._before: list[Callable[[], None]] = []

    def before_each_page(self, what: Callable[[], None]) -> None:
        """For figures that are brought up to date only when somebody asks."""
        self._before.append(what)

    def counter(self, metric: Metric) -> Family[Counter]:
        self._claim(metric, Kind.COUNTER)
        return Family(Counter(metric.family, described(metric), metric.labels, unit=metric.unit, registry=self._written), metric, self._fixed)

    def gauge(self, metric: Metric) -> Family[Gauge]:
        self._claim(metric, Kind.GAUGE)
        return Family(Gauge(metric.name, described(metric), metric.labels, unit=metric.unit, registry=self._written), metric, self._fixed)

    def histogram(self, metric: Metric) -> Distributions:
        self._claim(metric, Kind.HISTOGRAM)
        made = self._ours[metric.name] = Distributions(metric, self._fixed)
        return made

    def read(self, metric: Metric, source: Callable[[], Reading]) -> None:
        """`source` is asked at every scrape. What it leaves out of values that are all declared is 0."""
        self._claim(metric, Kind.COUNTER, Kind.GAUGE)
        self._ours[metric.name] = _Read(metric, source, self._fixed)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is declared for this process and that nothing exports."""
        return tuple(name for name in self._declared if name not in self._known)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The answer to a scrape, in the format that `accept` prefers, and its content type."""
        for what in self._before:
            what()
        encode, content_type = choose_encoder(accept)
        openmetrics = content_type.startswith(OPENMETRICS)
        lines = "".join(line for each in self._ours.values() for line in each.lines(openmetrics)).encode()
        written = encode(self._written)
        return (written.removesuffix(_EOF) + lines + _EOF if openmetrics else written + lines), content_type

    def _claim(self, metric: Metric, *kinds: Kind) -> None:
        if self._declared.get(metric.name) != metric or metric.kind not in kinds or metric.name in self._known:
            raise Undeclared(f"{metric.name}: is not declared as a {' or '.join(kinds)} of a {self._process}, or is exported twice")
        self._known.add(metric.name)


def described(metric: Metric) -> str:
    """Help as it is exported."""
    return f"{metric.help} Read as: {metric.formula}"


class _Read:
    """A metric that is read. Its series are written out here and kept: prometheus_client takes 15 us for each, 0.1 s with 1,000 cells."""

    def __init__(self, metric: Metric, source: Callable[[], Reading], fixed: Mapping[str, str]) -> None:
        self._metric = metric
        self._source = source
        self._labels = tuple(fixed.get(label) for label in metric.labels)
        self._zero = dict.fromkeys(_closed(metric, fixed), 0.0)
        self._series: dict[tuple[str, ...], str] = {}

    def lines(self, openmetrics: bool) -> Iterator[str]:
        reading = self._source()
        if reading is None:
            return
        yield _heading(self._metric, openmetrics)
        for values, number in self._numbers(reading):
            yield f"{self._series.get(values) or self._write(values)} {_number(number)}\n"

    def _numbers(self, reading: float | Numbers) -> Iterable[tuple[tuple[str, ...], float]]:
        if not isinstance(reading, Mapping):
            return [((), reading)]
        told = {(values,) if isinstance(values, str) else values: number for values, number in reading.items()}
        return (self._zero | told).items()

    def _write(self, values: tuple[str, ...]) -> str:
        series = self._series[values] = _series(self._metric.name, self._metric.labels, _filled(self._labels, values))
        return series


def _heading(metric: Metric, openmetrics: bool) -> str:
    named = metric.family if openmetrics else metric.name
    help_text = _escaped(described(metric)) if openmetrics else described(metric).replace("\\", r"\\").replace("\n", r"\n")
    unit = f"# UNIT {named} {metric.unit}\n" if openmetrics and metric.unit else ""
    return f"# HELP {named} {help_text}\n# TYPE {named} {metric.kind}\n{unit}"


def _series(name: str, labels: Iterable[str], values: Iterable[str]) -> str:
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{name}{{{pairs}}}" if pairs else name


def _filled(labels: tuple[str | None, ...], values: tuple[str, ...]) -> list[str]:
    """Fixed labels as they are, `values` in the places of the others."""
    rest = iter(values)
    return [next(rest) if fixed is None else fixed for fixed in labels]


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _closed(metric: Metric, fixed: Mapping[str, str]) -> Iterable[tuple[str, ...]]:
    """All combinations of the labels that are not fixed, where all of these have a declared set of values."""
    free = [label for label in metric.labels if label not in fixed]
    if not free or any(label not in metric.values for label in free):
        return ()
    return product(*(metric.values[label] for label in free))

"""What a metric is: declared once, and everything else (registries, dashboards, rules, documentation) is made from or checked against that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PREFIX = "tidemill_"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of one kind of process. `namespace`, `pod` and `instance` are not its labels: whoever scrapes adds them."""

    name: str  # as it is asked for: a counter's ends with _total
    kind: Kind
    help: str  # what is counted or measured, in one or two sentences
    formula: str  # the query by which it is meant to be read
    process: str  # which exports it: "conductor" | "gateway" | "cell" | "trainer" | "operator"
    labels: tuple[str, ...] = ()  # each is explained in `labels`
    unit: str = ""  # a base unit, which the name ends with (before _total); "" for what is just counted
    buckets: tuple[float, ...] = ()  # upper bounds, of a histogram
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)  # all that these labels can be; each is there from the start

    @property
    def family(self) -> str:
        """The name without what the kind adds, as OpenMetrics names the family."""
        return self.name.removesuffix("_total") if self.kind is Kind.COUNTER else self.name

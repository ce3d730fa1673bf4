"""Metrics of the operator. They are those of the process: jobs of all namespaces together."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.telemetry.metric import Kind, Metric

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROLES = {"to": ("Rollout", "Training")}


def _metric(
    name: str,
    kind: Kind,
    help: str,
    formula: str,
    labels: tuple[str, ...] = (),
    unit: str = "",
    buckets: tuple[float, ...] = (),
    values: Mapping[str, tuple[str, ...]] | None = None,
) -> Metric:
    return Metric(f"tidemill_operator_{name}", kind, help, formula, "operator", labels, unit, buckets, values or {})


RECONCILE_SECONDS = _metric(
    "reconcile_seconds",
    Kind.HISTOGRAM,
    "Duration of one pass over one job.",
    "histogram_quantile(0.99, sum by (le) (rate(tidemill_operator_reconcile_seconds_bucket[5m])))",
    unit="seconds",
    buckets=_SECONDS,
)
RECONCILE_ERRORS = _metric(
    "reconcile_errors_total",
    Kind.COUNTER,
    "Passes that failed and were put off.",
    "rate(tidemill_operator_reconcile_errors_total[5m]) / rate(tidemill_operator_reconcile_seconds_count[5m])",
)
QUEUE_DEPTH = _metric(
    "queue_depth",
    Kind.GAUGE,
    "Jobs that wait for a pass now. Growing for minutes means that passes are too slow.",
    "min_over_time(tidemill_operator_queue_depth[10m]) > 0",
)
API_CALLS = _metric(
    "api_calls_total",
    Kind.COUNTER,
    "Calls of the API server by verb, kind and status.",
    "sum by (verb, kind, code) (rate(tidemill_operator_api_calls_total[5m]))",
    ("verb", "kind", "code"),
)
LEADER = _metric("leader", Kind.GAUGE, "1 in the process that leads, 0 in the others.", "(sum(tidemill_operator_leader) or vector(0)) != 1")
FLIPS = _metric(
    "flips_total",
    Kind.COUNTER,
    "Flips that cells acknowledged, by role.",
    "sum by (to) (rate(tidemill_operator_flips_total[1h]))",
    ("to",),
    values=_ROLES,
)
GRANT_SECONDS = _metric(
    "grant_seconds",
    Kind.HISTOGRAM,
    "From the reading that lets a cell leave rollout to its role being written and delivered.",
    "histogram_quantile(0.99, sum by (le) (rate(tidemill_operator_grant_seconds_bucket[1h])))",
    unit="seconds",
    buckets=_SECONDS,
)
FLIP_SECONDS = _metric(
    "flip_seconds",
    Kind.HISTOGRAM,
    "Duration of a flip as its cell measured it, by role.",
    "sum by (to) (rate(tidemill_operator_flip_seconds_sum[1h])) / sum by (to) (rate(tidemill_operator_flip_seconds_count[1h]))",
    ("to",),
    "seconds",
    (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
    _ROLES,
)

ALL: tuple[Metric, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))

"""What the operator tells Prometheus about itself. Each help text has the formula by which the figure is meant to be read."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

RECONCILE_SECONDS = Histogram(
    "tidemill_operator_reconcile_seconds",
    "Duration of one pass over one job. p99: histogram_quantile(0.99, sum by (le) (rate(tidemill_operator_reconcile_seconds_bucket[5m])))",
    buckets=_SECONDS,
    registry=REGISTRY,
)
RECONCILE_ERRORS = Counter(
    "tidemill_operator_reconcile_errors_total",
    "Passes that failed and were put off. Share: rate(this[5m]) / rate(tidemill_operator_reconcile_seconds_count[5m])",
    registry=REGISTRY,
)
QUEUE_DEPTH = Gauge(
    "tidemill_operator_queue_depth", "Jobs that wait for a pass now. Growing for minutes means that passes are too slow.", registry=REGISTRY
)
API_CALLS = Counter(
    "tidemill_operator_api_calls_total",
    "Calls of the API server by verb, kind and status. Writes per flip: sum(rate(this{verb!='GET'}[1h])) / rate(tidemill_operator_flips_total[1h])",
    ("verb", "kind", "code"),
    registry=REGISTRY,
)
LEADER = Gauge("tidemill_operator_leader", "1 in the process that leads, 0 in the others. Alert: sum(this) != 1 for 1 min.", registry=REGISTRY)
FLIPS = Counter("tidemill_operator_flips_total", "Flips that cells acknowledged, by role. Rate: rate(this[1h])", ("to",), registry=REGISTRY)
GRANT_SECONDS = Histogram(
    "tidemill_operator_grant_seconds",
    "From the reading that lets a cell leave rollout to its role being written and delivered. "
    "p99: histogram_quantile(0.99, sum by (le) (rate(tidemill_operator_grant_seconds_bucket[1h])))",
    buckets=_SECONDS,
    registry=REGISTRY,
)
FLIP_SECONDS = Histogram(
    "tidemill_operator_flip_seconds",
    "Duration of a flip as its cell measured it, by role. Mean: rate(this_sum[1h]) / rate(this_count[1h])",
    ("to",),
    buckets=(0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128),
    registry=REGISTRY,
)

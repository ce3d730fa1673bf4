"""Metrics of a cell's trainer. Its busy and idle seconds together are the seconds for which it was joined."""

from __future__ import annotations

from tidemill.telemetry.metric import Kind, Metric

_CELL = ("job", "cell")


def _counter(name: str, help: str, formula: str, labels: tuple[str, ...] = _CELL, unit: str = "", **values: tuple[str, ...]) -> Metric:
    return Metric(f"tidemill_trainer_{name}", Kind.COUNTER, help, formula, "trainer", labels, unit, values=values)


def _gauge(name: str, help: str, formula: str, unit: str = "") -> Metric:
    return Metric(f"tidemill_trainer_{name}", Kind.GAUGE, help, formula, "trainer", _CELL, unit)


BUSY_SECONDS = _counter(
    "busy_seconds_total",
    "Seconds in training by activity. Compute: forward and backward; HandOver: of a gradient sum; Update: optimizer and checkpoint, core only; "
    "Publish: core only.",
    "sum by (job, cell, activity) (rate(tidemill_trainer_busy_seconds_total[5m]))",
    (*_CELL, "activity"),
    "seconds",
    activity=("Compute", "HandOver", "Update", "Publish"),
)
IDLE_SECONDS = _counter(
    "idle_seconds_total",
    "Seconds in training without anything to compute. NoWork: no group is ready; WaitingForWeights: they are read from the core before a step; "
    "JoiningClosed: every micro-step of the step is handed out, and the core updates.",
    'sum by (job, cell, cause) (rate({__name__=~"tidemill_(cell|trainer)_idle_seconds_total"}[5m]))',
    (*_CELL, "cause"),
    "seconds",
    cause=("NoWork", "WaitingForWeights", "JoiningClosed"),
)
STEP = _gauge(
    "step", "Optimizer steps in the weights that it holds; -1 without weights.", "tidemill_step - on (job) group_right tidemill_trainer_step"
)
MICROSTEPS = _counter("microsteps_total", "Micro-steps computed.", "rate(tidemill_trainer_microsteps_total[10m])")
COMPUTED_TOKENS = _counter(
    "computed_tokens_total",
    "Tokens computed, context included; work that was lost later counts too.",
    'rate(tidemill_trainer_computed_tokens_total[10m]) / on (job, cell) rate(tidemill_trainer_busy_seconds_total{activity="Compute"}[10m])',
    unit="tokens",
)
WEIGHT_BYTES = _counter(
    "weight_bytes_total", "Bytes of weights read from the core, before each step.", "rate(tidemill_trainer_weight_bytes_total[10m])", unit="bytes"
)
GRADIENT_BYTES = _counter(
    "gradient_bytes_total", "Bytes of gradient sums handed over.", "rate(tidemill_trainer_gradient_bytes_total[10m])", unit="bytes"
)
CHECKSUM_FAILURES = _counter(
    "checksum_failures_total",
    "Transfers whose bytes were not what was announced; they are repeated. Weights: at a satellite; Gradients: at the core.",
    "sum by (job, cell) (increase(tidemill_trainer_checksum_failures_total[1h])) > 0",
    (*_CELL, "kind"),
    kind=("Weights", "Gradients"),
)
PUBLICATIONS = _counter("publications_total", "Publications made; core only.", "increase(tidemill_trainer_publications_total[1h])")
PUBLICATION_SECONDS = _counter(
    "publication_seconds_total",
    "Seconds of taking and describing the snapshots that engines read; core only.",
    "rate(tidemill_trainer_publication_seconds_total[6h]) / rate(tidemill_trainer_publications_total[6h])",
    unit="seconds",
)
PUBLICATION_BYTES = _gauge("publication_bytes", "Bytes of the published weights; core only.", "tidemill_trainer_publication_bytes", unit="bytes")
CHECKPOINTS = _counter("checkpoints_total", "Checkpoints made durable; core only.", "increase(tidemill_trainer_checkpoints_total[1h])")
CHECKPOINT_SECONDS = _counter(
    "checkpoint_seconds_total",
    "Seconds of writing them, waiting for room included; core only.",
    "rate(tidemill_trainer_checkpoint_seconds_total[6h]) / rate(tidemill_trainer_checkpoints_total[6h])",
    unit="seconds",
)
CHECKPOINT_BYTES = _gauge("checkpoint_bytes", "Bytes of the newest checkpoint; core only.", "tidemill_trainer_checkpoint_bytes", unit="bytes")

ALL: tuple[Metric, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))

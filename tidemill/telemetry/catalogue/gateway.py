"""Metrics of a gateway. A job may have several: sum over their pods."""

from __future__ import annotations

from tidemill.telemetry.metric import Kind, Metric

_JOB = ("job",)
_WIRES = ("chat", "messages", "responses")


def _counter(name: str, help: str, formula: str, labels: tuple[str, ...] = _JOB, unit: str = "", **values: tuple[str, ...]) -> Metric:
    return Metric(f"tidemill_gateway_{name}", Kind.COUNTER, help, formula, "gateway", labels, unit, values=values)


def _gauge(name: str, help: str, formula: str, unit: str = "") -> Metric:
    return Metric(f"tidemill_gateway_{name}", Kind.GAUGE, help, formula, "gateway", _JOB, unit)


REQUESTS = _counter(
    "requests_total",
    "Answers to harnesses by wire and HTTP status. An answer that had begun before it failed counts as 200 and as a failed call.",
    'sum by (job, wire) (rate(tidemill_gateway_requests_total{code=~"5.."}[5m])) / sum by (job, wire) (rate(tidemill_gateway_requests_total[5m]))',
    ("job", "wire", "code"),
)
CALLS = _counter(
    "calls_total",
    "Model calls whose answer is complete and journaled, since the journal was made.",
    "sum by (job) (rate(tidemill_gateway_calls_total[5m]))",
)
CALLS_FAILED = _counter(
    "calls_failed_total",
    "Model calls that ended without an answer: time-outs, prompts that are too long, executions that were closed meanwhile.",
    "rate(tidemill_gateway_calls_failed_total[5m])",
)
CALL_SECONDS = Metric(
    "tidemill_gateway_call_seconds",
    Kind.HISTOGRAM,
    "From a model call's arrival to its complete answer.",
    "histogram_quantile(0.9, sum by (job, le) (rate(tidemill_gateway_call_seconds_bucket[5m])))",
    "gateway",
    ("job", "wire"),
    "seconds",
    (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
    {"wire": _WIRES},
)
FIRST_TOKEN_SECONDS = Metric(
    "tidemill_gateway_first_token_seconds",
    Kind.HISTOGRAM,
    "From a model call's arrival to the first token that an engine sampled for it.",
    "histogram_quantile(0.9, sum by (job, le) (rate(tidemill_gateway_first_token_seconds_bucket[5m])))",
    "gateway",
    _JOB,
    "seconds",
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
PROMPT_TOKENS = _counter(
    "prompt_tokens_total", "Tokens of the prompts of complete calls.", "sum by (job) (rate(tidemill_gateway_prompt_tokens_total[5m]))", unit="tokens"
)
SAMPLED_TOKENS = _counter(
    "sampled_tokens_total",
    "Tokens that engines sampled for complete calls.",
    "sum by (job) (rate(tidemill_gateway_sampled_tokens_total[5m]))",
    unit="tokens",
)
RESUBMITTED_CALLS = _counter(
    "resubmitted_calls_total",
    "Complete calls to which two engines each sampled at least one token, since the journal was made.",
    "sum by (job) (increase(tidemill_gateway_resubmitted_calls_total[1h]))",
)
RECOMPUTED_TOKENS = _counter(
    "recomputed_tokens_total",
    "Prompt and sampled tokens whose KV a second engine computed again, since the journal was made.",
    "sum by (job) (rate(tidemill_gateway_recomputed_tokens_total[1h]))",
    unit="tokens",
)
MOVED_KV_BLOCKS = _counter(
    "moved_kv_blocks_total",
    "KV blocks that a second engine read from the first instead of computing them. 0 as long as moved calls are recomputed.",
    "sum by (job) (rate(tidemill_gateway_moved_kv_blocks_total[1h]))",
)
ATTACHED_RETRIES = _counter(
    "attached_retries_total",
    "Requests of harnesses that were retries and got the answer of the call under way, since the journal was made.",
    "sum by (job) (increase(tidemill_gateway_attached_retries_total[1h]))",
)
LIVE_CALLS = _gauge("live_calls", "Model calls under way.", "sum by (job) (tidemill_gateway_live_calls)")
WAITING_CALLS = _gauge(
    "waiting_calls",
    "Model calls under way that no engine serves now: there is no cell to go to, or the cells rest after failures.",
    "sum by (job) (tidemill_gateway_waiting_calls)",
)
HELD_TURNS = _gauge(
    "held_turns",
    "Finished turns that the conductor has not acknowledged yet. Growing means that it, or its disk, does not keep up.",
    "sum by (job) (tidemill_gateway_held_turns)",
)
HELD_BACK = _gauge("held_back", "1 while answers are held back because the journal's disk is full.", "max by (job) (tidemill_gateway_held_back)")
EXECUTIONS = _gauge("executions", "Executions whose key is valid.", "sum by (job) (tidemill_gateway_executions)")
ROUTES = _gauge("routes", "Cells that calls may go to.", "min by (job) (tidemill_gateway_routes)")

ALL: tuple[Metric, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))

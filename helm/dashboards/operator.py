"""*Operator*: whether it leads, keeps up, and what it asks of the API server."""

from __future__ import annotations

from helm.dashboards.panel import NEEDS_AN_OPERATOR, Board, Panel, Query, Row, Shape
from helm.dashboards.queries import OPERATOR, quantile, rate


def _panel(title: str, description: str, *queries: tuple[str, str], shape: Shape = Shape.LINES, unit: str = "short") -> Panel:
    return Panel(title, description, tuple(Query(*query) for query in queries), shape, unit, empty=NEEDS_AN_OPERATOR)


LIFE = Row(
    "Operator",
    (
        _panel(
            "Leaders",
            "1 is right. 0: no operator acts, jobs that run go on by themselves; the runbook of TidemillOperatorWithoutLeader.",
            (f"sum by (cluster, namespace) (tidemill_operator_leader{{{OPERATOR}}})", "{{namespace}}"),
        ),
        _panel(
            "Duration of a pass",
            "Over one job. Slow: the API server is, see its calls.",
            (quantile(0.5, "tidemill_operator_reconcile_seconds", OPERATOR), "median"),
            (quantile(0.99, "tidemill_operator_reconcile_seconds", OPERATOR), "99 of 100"),
            unit="s",
        ),
        _panel(
            "Passes, and those that failed",
            "Each second. Failing ones are repeated; the job's condition Created and the operator's log say why.",
            (f"sum(rate(tidemill_operator_reconcile_seconds_count{{{OPERATOR}}}[$__rate_interval]))", "passes"),
            (f"sum(rate(tidemill_operator_reconcile_errors_total{{{OPERATOR}}}[$__rate_interval]))", "failed"),
        ),
        _panel(
            "Jobs that wait for a pass",
            "More than 0 for minutes: raise the operator's CPU.",
            (f"max(tidemill_operator_queue_depth{{{OPERATOR}}})", "jobs"),
        ),
        _panel(
            "Calls of the API server",
            "Each second, by verb and status. 409 now and then is right; 429: the API server throttles; 403: a right is missing.",
            (rate("tidemill_operator_api_calls_total", OPERATOR, "verb, code"), "{{verb}} {{code}}"),
            shape=Shape.STACKED,
            unit="reqps",
        ),
        _panel(
            "Calls of the API server by kind",
            "Each second.",
            (rate("tidemill_operator_api_calls_total", OPERATOR, "kind"), "{{kind}}"),
            shape=Shape.STACKED,
            unit="reqps",
        ),
    ),
)

FLIPS = Row(
    "Flips",
    (
        _panel(
            "Flips",
            "An hour, by role.",
            (f"sum by (to) (increase(tidemill_operator_flips_total{{{OPERATOR}}}[1h]))", "to {{to}}"),
        ),
        _panel(
            "From a reading to a delivered role",
            "What the operator adds to a flip. Above 1 s: the API server or the network to the cells is slow.",
            (quantile(0.5, "tidemill_operator_grant_seconds", OPERATOR, window="1h"), "median"),
            (quantile(0.99, "tidemill_operator_grant_seconds", OPERATOR, window="1h"), "99 of 100"),
            unit="s",
        ),
        _panel(
            "Duration of flips",
            "As the cells measured them.",
            (quantile(0.5, "tidemill_operator_flip_seconds", OPERATOR, "to", "1h"), "to {{to}}, median"),
            (quantile(0.9, "tidemill_operator_flip_seconds", OPERATOR, "to", "1h"), "to {{to}}, 9 of 10"),
            unit="s",
        ),
    ),
)

BOARD = Board(
    "tidemill-operator",
    "Operator",
    "The operator: leader, passes, queue, calls of the API server, what it adds to flips.",
    ("cluster", "namespace"),
    ("cluster", "namespace"),
    (LIFE, FLIPS),
    source="tidemill_operator_leader",
)

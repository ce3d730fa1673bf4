"""*Gateway*: the model calls of a job's agents."""

from __future__ import annotations

from helm.dashboards.panel import Board, Panel, Query, Row, Shape
from helm.dashboards.queries import JOB, quantile, rate

CALLS = Row(
    "Calls",
    (
        Panel(
            "Answers by wire and status",
            "Each second. 5xx: the gateway could not serve; 4xx: a harness sends what it does not understand, its log has the message.",
            (Query(rate("tidemill_gateway_requests_total", JOB, "wire, code"), "{{wire}} {{code}}"),),
            Shape.STACKED,
            "reqps",
        ),
        Panel(
            "Share of answers that are errors",
            "By wire. Above 1% for minutes: open the gateway's log (`tidemill logs JOB --execution X`).",
            (
                Query(
                    f'(sum by (wire) (rate(tidemill_gateway_requests_total{{{JOB}, code=~"5.."}}[$__rate_interval])) or '
                    f"0 * {rate('tidemill_gateway_requests_total', JOB, 'wire')}) / {rate('tidemill_gateway_requests_total', JOB, 'wire')}",
                    "{{wire}}",
                ),
            ),
            unit="percentunit",
            thresholds=((0.01, "red"),),
        ),
        Panel(
            "Calls that ended without an answer",
            "Each second. Time-outs (timeouts.callSeconds), prompts that are too long (model.maxLength), executions that were closed meanwhile.",
            (Query(f"sum(rate(tidemill_gateway_calls_failed_total{{{JOB}}}[$__rate_interval]))", "failed/s"),),
            unit="reqps",
        ),
        Panel(
            "Duration of a call",
            "From arrival to complete answer, by wire.",
            (
                Query(quantile(0.5, "tidemill_gateway_call_seconds", JOB, "wire"), "{{wire}} median"),
                Query(quantile(0.99, "tidemill_gateway_call_seconds", JOB, "wire"), "{{wire}} 99 of 100"),
            ),
            unit="s",
        ),
        Panel(
            "Time to the first token",
            "High with many waiting calls: too few cells in rollout. High without: long prompts, or the prefix cache misses.",
            (
                Query(quantile(0.5, "tidemill_gateway_first_token_seconds", JOB), "median"),
                Query(quantile(0.99, "tidemill_gateway_first_token_seconds", JOB), "99 of 100"),
            ),
            unit="s",
        ),
        Panel(
            "Tokens",
            "Of prompts and sampled, each second, of complete calls.",
            (
                Query(f"sum(rate(tidemill_gateway_prompt_tokens_total{{{JOB}}}[$__rate_interval]))", "prompts"),
                Query(f"sum(rate(tidemill_gateway_sampled_tokens_total{{{JOB}}}[$__rate_interval]))", "sampled"),
            ),
        ),
        Panel(
            "Calls under way",
            "Waiting calls are served by no engine now. They wait for seconds at a flip; for minutes: no cell is routed to, see routes.",
            (
                Query(f"sum(tidemill_gateway_live_calls{{{JOB}}})", "under way"),
                Query(f"sum(tidemill_gateway_waiting_calls{{{JOB}}})", "waiting"),
            ),
        ),
        Panel(
            "Cells that calls may go to",
            "0 while executions run: every cell is away or has unverified weights. The job's page shows which.",
            (Query(f"min by (job) (tidemill_gateway_routes{{{JOB}}})", "routes"),),
        ),
        Panel(
            "Executions with a key",
            "Live executions, as the gateway knows them.",
            (Query(f"sum(tidemill_gateway_executions{{{JOB}}})", "executions"),),
        ),
    ),
)

TURNS = Row(
    "Turns and moves",
    (
        Panel(
            "Turns not yet with the conductor",
            "Finished turns that it has not acknowledged. Growing: the conductor or its disk does not keep up.",
            (Query(f"sum(tidemill_gateway_held_turns{{{JOB}}})", "turns"),),
            thresholds=((1000, "orange"),),
        ),
        Panel(
            "Answers held back",
            "1 while the journal's disk is full: free space there; calls go on by themselves.",
            (Query(f"max(tidemill_gateway_held_back{{{JOB}}})", "held back"),),
            maximum=1.0,
            thresholds=((1, "red"),),
        ),
        Panel(
            "Calls in two pieces",
            "Answers to which two engines sampled, in an hour. They come with flips.",
            (Query(f"sum(increase(tidemill_gateway_resubmitted_calls_total{{{JOB}}}[1h]))", "calls"),),
        ),
        Panel(
            "Computed again for them",
            "Tokens whose KV the second engine computed again, and KV blocks that it read instead, in an hour.",
            (
                Query(f"sum(increase(tidemill_gateway_recomputed_tokens_total{{{JOB}}}[1h]))", "tokens computed again"),
                Query(f"sum(increase(tidemill_gateway_moved_kv_blocks_total{{{JOB}}}[1h]))", "KV blocks moved"),
            ),
        ),
        Panel(
            "Retries that were attached",
            "Requests of harnesses that were retries and got the answer under way, in an hour. Many: harnesses time out before callSeconds.",
            (Query(f"sum(increase(tidemill_gateway_attached_retries_total{{{JOB}}}[1h]))", "retries"),),
        ),
    ),
)

BOARD = Board(
    "tidemill-gateway",
    "Gateway",
    "Model calls of the agents: how many, how long, how many wait, what fails.",
    ("cluster", "namespace", "job"),
    ("cluster", "namespace"),
    (CALLS, TURNS),
    annotated=True,
)

"""What a job's steps do and what is learned: a row of *Job*."""

from __future__ import annotations

from helm.dashboards.panel import NEEDS_A_BURST, NEEDS_HELD_OUT_TASKS, Panel, Query, Row, Shape
from helm.dashboards.queries import JOB, mean

STEPS = Row(
    "Steps and what is learned",
    (
        Panel(
            "Duration of a step",
            "Mean of the last hour, from opening to commit; the first of each burst includes waiting for groups.",
            (Query(mean("tidemill_step_seconds", JOB, "job"), "mean"),),
            unit="s",
        ),
        Panel(
            "Score",
            "Mean score of trained executions, and on held-out tasks. Trained rises and held-out does not: it memorises.",
            (Query(f"max(tidemill_step_score{{{JOB}}})", "trained"),),
            minimum=None,
        ),
        Panel(
            "Score on held-out tasks",
            "At the last measurement.",
            (Query(f"max(tidemill_held_out_score{{{JOB}}})", "held out"),),
            minimum=None,
            empty=NEEDS_HELD_OUT_TASKS,
        ),
        Panel("Loss", "Of the last step. Its sign means nothing; jumps do.", (Query(f"max(tidemill_loss{{{JOB}}})", "loss"),), minimum=None),
        Panel(
            "Gradient norm",
            "Before clipping. Growing without bound: lower learningRate. Skipped updates had a gradient that was not finite.",
            (
                Query(f"max(tidemill_gradient_norm{{{JOB}}})", "norm"),
                Query(f"sum(increase(tidemill_updates_skipped_total{{{JOB}}}[6h]))", "skipped updates in 6 h"),
            ),
        ),
        Panel(
            "Clipped and capped",
            "Shares of tokens. Clipped: the policy moved further than sequenceClip in one burst. Capped: trainer and engine disagree by more than "
            "tokenWeightCap; together with the next panel that is a precision problem.",
            (
                Query(f"max(tidemill_clipped_tokens_ratio{{{JOB}}})", "clipped"),
                Query(f"max(tidemill_capped_tokens_ratio{{{JOB}}})", "capped"),
            ),
            unit="percentunit",
        ),
        Panel(
            "Trainer against engine",
            "Mean absolute difference of log-probabilities. It grows with staleness; growing at the same staleness, kernels or dtypes disagree.",
            (Query(f"max(tidemill_logprob_difference_mean{{{JOB}}})", "mean |difference|"),),
        ),
        Panel(
            "Staleness",
            "Of the last step, in publications against the bound, and in optimizer updates. At the bound for long: the runbook of "
            "TidemillStalenessAtBound.",
            (
                Query(f"max(tidemill_staleness_publications{{{JOB}}})", "publications"),
                Query(f"max(tidemill_staleness_bound_publications{{{JOB}}})", "bound"),
                Query(f"max(tidemill_staleness_updates{{{JOB}}})", "updates"),
            ),
        ),
        Panel(
            "Tokens",
            "Trained, computed with their context, and saved because sequences share prefixes.",
            (
                Query(f"sum(rate(tidemill_trained_tokens_total{{{JOB}}}[10m]))", "trained/s"),
                Query(f"sum(rate(tidemill_computed_tokens_total{{{JOB}}}[10m]))", "computed/s"),
                Query(f"sum(rate(tidemill_shared_tokens_total{{{JOB}}}[10m]))", "saved/s"),
            ),
        ),
        Panel(
            "Micro-steps",
            "Queued and no cell leases: nobody trains yet. Leased for long: a trainer is slow; its lease expires and the work is done again.",
            (Query(f'sum by (state) (tidemill_microsteps{{{JOB}, state=~"Queued|Leased|Counted"}})', "{{state}}"),),
            Shape.STACKED,
        ),
        Panel(
            "Micro-steps done again",
            "By reason, in an hour. CellLost, CoreReplaced: a cell died. Expired: leases are too short for these micro-steps.",
            (
                Query(f"sum by (reason) (increase(tidemill_microsteps_requeued_total{{{JOB}}}[1h]))", "{{reason}}"),
                Query(f"sum(increase(tidemill_microsteps_returned_total{{{JOB}}}[1h]))", "returned"),
            ),
            Shape.STACKED,
        ),
        Panel(
            "Early against late groups of a burst",
            "Mean score of the groups that were ready first and last. A lasting difference: early steps see other tasks than late ones.",
            (Query(f"max by (part) (tidemill_burst_group_score{{{JOB}}})", "{{part}}"),),
            minimum=None,
            empty=NEEDS_A_BURST,
        ),
        Panel(
            "Duration of early and late groups",
            "Mean, from first start to last outcome.",
            (Query(f"max by (part) (tidemill_burst_group_seconds{{{JOB}}})", "{{part}}"),),
            unit="s",
            empty=NEEDS_A_BURST,
        ),
        Panel(
            "Groups that are not trained",
            "By reason, in an hour. TooFewScores: evaluators or sandboxes fail. Stale: rollout is far ahead of training.",
            (Query(f"sum by (reason) (increase(tidemill_groups_dropped_total{{{JOB}}}[1h]))", "{{reason}}"),),
            Shape.STACKED,
        ),
    ),
)

"""*Job*: one job, from its waterlevel to its weights."""

from __future__ import annotations

from helm.dashboards.panel import (
    NEEDS_A_FAILURE,
    Board,
    Panel,
    Query,
    Row,
    Shape,
)
from helm.dashboards.queries import JOB, average, mean, quantile, rate, role_of_cells
from helm.dashboards.steps import STEPS
from helm.dashboards.words import PHASES, ROLES, phase_of_jobs


def _now(title: str, description: str, expr: str, unit: str = "short", *thresholds: tuple[float, str], empty: str = "") -> Panel:
    return Panel(title, description, (Query(expr),), Shape.STAT, unit, 3, 4, thresholds, empty=empty)


def _share(bucket: str) -> str:
    return f"sum(increase({bucket}[1h])) / sum(increase(tidemill_execution_score_count{{{JOB}}}[1h]))"


NOW = Row(
    "Now",
    (
        Panel(
            "Phase",
            "Paused: a condition holds the job back, see Conditions below. Failed: `tidemill status JOB` says why.",
            (Query(phase_of_jobs(JOB, "job")),),
            Shape.STAT,
            width=3,
            height=4,
            states=PHASES,
        ),
        _now(
            "Steps",
            "Share of the planned optimizer steps that are committed.",
            f"max(tidemill_step{{{JOB}}} / tidemill_steps_planned)",
            "percentunit",
        ),
        _now("Policy version", "The published version that engines serve.", f"max(tidemill_policy_version{{{JOB}}})"),
        _now("Score", "Mean score of the executions that the last step trained.", f"max(tidemill_step_score{{{JOB}}})"),
        _now(
            "Staleness of bound",
            "Staleness of the last step over the job's bound. At 1 a burst waits for fresher groups (onStale: Wait) or drops old ones; raise "
            "maxStaleness or lower prefetchSteps if it stays there.",
            f"max(tidemill_staleness_publications{{{JOB}}} / (tidemill_staleness_bound_publications > 0))",
            "percentunit",
            (1, "orange"),
        ),
        _now(
            "Checkpoint age",
            "Since the newest durable checkpoint. What is lost when the core dies now. Old: see Steps; if steps are quick, the core's disk is slow.",
            f"time() - max(tidemill_checkpoint_timestamp_seconds{{{JOB}}})",
            "s",
            (3600, "orange"),
            (14400, "red"),
        ),
        _now(
            "Executions lost",
            "Must be 0; otherwise see the runbook of TidemillExecutionsLost.",
            f"max(tidemill_executions_lost{{{JOB}}})",
            "short",
            (1, "red"),
        ),
        _now(
            "Conditions",
            "What holds the job back or is amiss. `tidemill status JOB` has the text.",
            f"sum(tidemill_conditions{{{JOB}}})",
            "short",
            (1, "orange"),
        ),
    ),
)

TIDE = Row(
    "Tide",
    (
        Panel(
            "Waterlevel against capacity",
            "Unfinished executions, and how many the cells in rollout can serve. Inside a burst the waterlevel only falls; each time it falls "
            "below what "
            "the other cells can serve, one more cell leaves for training. A waterlevel that stands still for long: look at the oldest "
            "executions with `tidemill top JOB`.",
            (
                Query(f"max(tidemill_waterlevel{{{JOB}}})", "waterlevel"),
                Query(f"max(tidemill_rollout_capacity{{{JOB}}})", "capacity in rollout"),
                Query(f"max(tidemill_groups_due{{{JOB}}})", "groups that the burst still trains"),
            ),
            width=24,
            height=8,
        ),
        Panel(
            "Role of each cell",
            "Blue serves agents, orange trains, purple is between. A cell that is purple or grey for minutes is stuck: click it. Cells leave "
            "in order, the core first, and come back together.",
            (Query(role_of_cells(JOB), "{{cell}}"),),
            Shape.TIMELINE,
            width=24,
            height=8,
            states=ROLES,
            link="tidemill-cell",
            variables=("cell",),
        ),
        Panel(
            "Cells idle, by cause",
            "How many cells wait, and for what. rollout NoWork: more capacity than executions. training NoWork: groups are not ready when cells are. "
            "JoiningClosed: the core updates; long ones mean a slow checkpoint disk.",
            (
                Query(rate("tidemill_cell_idle_seconds_total", JOB, "cause"), "rollout {{cause}}"),
                Query(rate("tidemill_trainer_idle_seconds_total", JOB, "cause"), "training {{cause}}"),
            ),
            Shape.STACKED,
        ),
        Panel(
            "Executions by state",
            "Pending wait for a place in a sandbox or a cell; Evaluating are being scored. Many Pending: more capacity or fewer prefetchSteps. Many "
            "Evaluating: evaluators are slow.",
            (Query(f'sum by (state) (tidemill_executions{{{JOB}, state=~"Pending|Running|Evaluating"}})', "{{state}}"),),
            Shape.STACKED,
        ),
        Panel(
            "Groups by state",
            "Ready groups wait for a training cell. Ready and no cell in training: the waterlevel is too high to let one go.",
            (Query(f'sum by (state) (tidemill_groups{{{JOB}, state=~"Open|Ready|Assigned"}})', "{{state}}"),),
            Shape.STACKED,
        ),
        Panel(
            "Duration of executions",
            "From first start to outcome. A tail that grows: agents got lost, or the cells are overloaded. Near executionSeconds: they are "
            "cut off there.",
            (
                Query(quantile(0.5, "tidemill_execution_seconds", JOB, window="1h"), "median"),
                Query(quantile(0.9, "tidemill_execution_seconds", JOB, window="1h"), "9 of 10"),
            ),
            unit="s",
        ),
        Panel(
            "Executions that ended without a score",
            "By reason, in an hour. Harness: it never called the model, see its log. Evaluator: tests crash or hang, see the runbook of "
            "TidemillEvaluatorFailures. GroupTimeout: groupSeconds is too short for these tasks.",
            (Query(f"sum by (reason) (increase(tidemill_executions_dropped_total{{{JOB}}}[1h]))", "{{reason}}"),),
            Shape.STACKED,
        ),
        Panel(
            "Attempts that infrastructure failed",
            "Lost pods, gateways and sandboxes. Each execution begins anew, at most three times.",
            (Query(f"sum(increase(tidemill_attempts_failed_total{{{JOB}}}[1h]))", "in an hour"),),
        ),
        Panel(
            "Executions in an hour",
            "Dispatched at the beginning of bursts, started when there is a place, ended.",
            (
                Query(f"sum(increase(tidemill_executions_dispatched_total{{{JOB}}}[1h]))", "dispatched"),
                Query(f"sum(increase(tidemill_executions_started_total{{{JOB}}}[1h]))", "started"),
                Query(f"sum(increase(tidemill_executions_terminated_total{{{JOB}}}[1h]))", "ended"),
            ),
        ),
        Panel(
            "Groups in an hour",
            "Trained, and those of them whose scores are all equal, which teach nothing. Fewer than usual with as many executions: groups are "
            "dropped, see below. Many equal: choose other tasks, or set skipEqualGroups.",
            (
                Query(f"sum(increase(tidemill_groups_trained_total{{{JOB}}}[1h]))", "trained"),
                Query(f"sum(increase(tidemill_groups_equal_total{{{JOB}}}[1h]))", "of equal scores"),
            ),
        ),
        Panel(
            "Scores of executions",
            "Mean of the last hour's executions, and shares of those with a score of at most 0, and above 0.9. Nearly all at one end: groups "
            "have equal scores and teach nothing; choose easier or harder tasks.",
            (
                Query(mean("tidemill_execution_score", JOB, "job"), "mean of all"),
                Query(_share(f'tidemill_execution_score_bucket{{{JOB}, le="0.0"}}'), "share of 0 or less"),
                Query(f"1 - {_share(f'tidemill_execution_score_bucket{{{JOB}, le="0.9"}}')}", "share above 0.9"),
            ),
            unit="percentunit",
            maximum=1.0,
        ),
    ),
)

FLIPS = Row(
    "Flips",
    (
        Panel(
            "Duration of flips",
            "Median and 9 of 10 by direction, of the last hour. Slower than usual: the phases beside say where; the runbook of "
            "TidemillFlipSlow what to do.",
            (
                Query(quantile(0.5, "tidemill_flip_seconds", JOB, "to", "1h"), "to {{to}}, median"),
                Query(quantile(0.9, "tidemill_flip_seconds", JOB, "to", "1h"), "to {{to}}, 9 of 10"),
            ),
            unit="s",
        ),
        Panel(
            "Phases of flips",
            "Mean seconds of each phase, of the last hour. drain: calls in flight are moved. sleep, wake: the engine's memory. weights: pulling and "
            "checking them. join, leave: the trainer.",
            (Query(mean("tidemill_flip_phase_seconds", JOB, "to, phase"), "to {{to}}: {{phase}}"),),
            Shape.STACKED,
            "s",
        ),
        Panel(
            "Flips in an hour",
            "By cell. One cell far above the others flaps: the runbook of TidemillCellFlapping.",
            (Query(f"sum by (cell) (increase(tidemill_cell_flips_total{{{JOB}}}[1h]))", "{{cell}}"),),
            link="tidemill-cell",
            variables=("cell",),
        ),
        Panel(
            "Calls moved by flips",
            "Calls that went on in another cell after the first had sampled some of their answer, in an hour. The agents see one answer.",
            (Query(f"sum(increase(tidemill_gateway_resubmitted_calls_total{{{JOB}}}[1h]))", "calls"),),
        ),
        Panel(
            "Computed again for them",
            "Tokens whose KV the other cell computed again, and KV blocks that it read instead, in an hour.",
            (
                Query(f"sum(increase(tidemill_gateway_recomputed_tokens_total{{{JOB}}}[1h]))", "tokens computed again"),
                Query(f"sum(increase(tidemill_gateway_moved_kv_blocks_total{{{JOB}}}[1h]))", "KV blocks moved"),
            ),
        ),
        Panel(
            "Attempts at a phase that failed",
            "Each is repeated. A cell that keeps failing: open it, its state says which phase and why.",
            (Query(f"sum by (cell) (increase(tidemill_cell_phase_failures_total{{{JOB}}}[1h]))", "{{cell}}"),),
            link="tidemill-cell",
            variables=("cell",),
        ),
        Panel(
            "Who decides flips",
            "The term of the operator that decides them; 0 while the conductor does, which is right on one machine and means on a cluster "
            "that no operator is heard.",
            (Query(f"max(tidemill_controller_term{{{JOB}}})", "term"),),
        ),
    ),
)

WEIGHTS = Row(
    "Publications and checkpoints",
    (
        Panel(
            "Until a cell serves a publication",
            "From publication to verified weights, 9 of 10 cells of the last hour.",
            (
                Query(quantile(0.5, "tidemill_publication_load_seconds", JOB, window="1h"), "median"),
                Query(quantile(0.9, "tidemill_publication_load_seconds", JOB, window="1h"), "9 of 10"),
            ),
            unit="s",
        ),
        Panel(
            "Weights that could not be loaded",
            "In an hour. Checksum: what an engine holds is not what was published; the cell stays out of routing and pulls again. More than a "
            "few: the runbook of TidemillWeightsMismatch.",
            (
                Query(f"sum by (reason) (increase(tidemill_cell_weight_load_failures_total{{{JOB}}}[1h]))", "engine: {{reason}}"),
                Query(f"sum by (kind) (increase(tidemill_trainer_checksum_failures_total{{{JOB}}}[1h]))", "trainer: {{kind}}"),
            ),
        ),
        Panel(
            "Publishing and checkpoints",
            "Mean seconds of each, of the last 6 h. A checkpoint that takes as long as a step holds training up: a faster volume, or everySteps.",
            (
                Query(
                    average("tidemill_trainer_publications_total", "tidemill_trainer_publication_seconds_total", JOB),
                    "publication",
                ),
                Query(
                    average("tidemill_trainer_checkpoints_total", "tidemill_trainer_checkpoint_seconds_total", JOB),
                    "checkpoint",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Age of the newest checkpoint",
            "It falls to 0 at every committed step with a checkpoint.",
            (Query(f"time() - max(tidemill_checkpoint_timestamp_seconds{{{JOB}}})", "age"),),
            unit="s",
        ),
        Panel(
            "Bytes",
            "Of the published weights and of the newest checkpoint.",
            (
                Query(f"max(tidemill_trainer_publication_bytes{{{JOB}}})", "publication"),
                Query(f"max(tidemill_trainer_checkpoint_bytes{{{JOB}}})", "checkpoint"),
            ),
            unit="bytes",
        ),
        Panel(
            "Cells that are not what they should be",
            "Silent, failed, cordoned, or with other weights than were published. Click one.",
            (
                Query(f"tidemill_cell_usable{{{JOB}}} == 0", "{{cell}} not usable"),
                Query(f"tidemill_cell_weights_mismatch{{{JOB}}} == 1", "{{cell}} wrong weights"),
                Query(f"tidemill_cell_silent_seconds{{{JOB}}} > 15", "{{cell}} silent for s"),
            ),
            link="tidemill-cell",
            variables=("cell",),
            empty=NEEDS_A_FAILURE,
        ),
    ),
)

BOARD = Board(
    "tidemill-job",
    "Job",
    "One RLJob: its waterlevel, what each cell does, steps, scores, staleness, flips, publications and checkpoints.",
    ("cluster", "namespace", "job"),
    ("cluster", "namespace"),
    (NOW, TIDE, STEPS, FLIPS, WEIGHTS),
    annotated=True,
)

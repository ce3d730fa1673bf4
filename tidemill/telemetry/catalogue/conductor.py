"""Metrics of a job's conductor: what its store says, and what its events told. They go on where they were after a restart."""

from __future__ import annotations

from tidemill.telemetry.metric import Kind, Metric

_JOB = ("job",)
_FLIP_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_LONG_BUCKETS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 57600.0)
_ROLES = ("Rollout", "Training")
_PHASES = ("drain", "sleep", "join", "leave", "wake", "weights", "route")


def _counter(name: str, help: str, formula: str, labels: tuple[str, ...] = _JOB, unit: str = "", **values: tuple[str, ...]) -> Metric:
    return Metric(f"tidemill_{name}", Kind.COUNTER, help, formula, "conductor", labels, unit, values=values)


def _gauge(name: str, help: str, formula: str, labels: tuple[str, ...] = _JOB, unit: str = "", **values: tuple[str, ...]) -> Metric:
    return Metric(f"tidemill_{name}", Kind.GAUGE, help, formula, "conductor", labels, unit, values=values)


def _histogram(
    name: str, help: str, formula: str, buckets: tuple[float, ...], labels: tuple[str, ...] = _JOB, unit: str = "", **values: tuple[str, ...]
) -> Metric:
    return Metric(f"tidemill_{name}", Kind.HISTOGRAM, help, formula, "conductor", labels, unit, buckets, values)


# The job.

JOB_PHASE = _gauge(
    "job_phase",
    "1 for the phase that the job is in, 0 for the others. Paused: a condition holds it back.",
    'tidemill_job_phase{phase="Paused"} == 1',
    ("job", "phase"),
    phase=("Starting", "Running", "Paused", "Succeeded", "Failed"),
)
JOB_SUSPENDED = _gauge("job_suspended", "1 while nothing is dispatched or leased because the job is suspended.", "tidemill_job_suspended == 1")
CONDITIONS = _gauge(
    "conditions",
    "How many conditions of a kind hold the job back or tell that something is amiss. Under StoreWritable, DiskSpace, GatewayReady, "
    "SandboxesStart and CoreReady no execution is started; CellReady counts cells that failed, are silent or hold wrong weights.",
    "sum by (job, kind) (tidemill_conditions) > 0",
    ("job", "kind"),
    kind=("StoreWritable", "DiskSpace", "GatewayReady", "SandboxesStart", "CoreReady", "CoreMayTrain", "CellReady"),
)
CONTROLLER_TERM = _gauge(
    "controller_term",
    "Number of the operator's term while it decides flips; 0 while the conductor does it itself.",
    "tidemill_controller_term == 0",
)

# Executions and the waterlevel.

DISPATCHED = _counter(
    "executions_dispatched_total",
    "d: executions dispatched, evaluations included, each counted once however many attempts it takes.",
    "rate(tidemill_executions_dispatched_total[1h])",
)
STARTED = _counter(
    "executions_started_total",
    "p: executions whose harness was started.",
    "rate(tidemill_executions_started_total[1h])",
)
TERMINATED = _counter(
    "executions_terminated_total",
    "f: executions with a final outcome, dropped ones included.",
    "tidemill_executions_dispatched_total - tidemill_executions_terminated_total",
)
EXECUTIONS_DROPPED = _counter(
    "executions_dropped_total",
    "Executions that ended without a score, by reason. Evaluator: it crashed or ran out of time three times; Harness: it never called the model.",
    "sum by (job, reason) (increase(tidemill_executions_dropped_total[1h]))",
    ("job", "reason"),
    reason=("GroupTimeout", "Gateway", "Sandbox", "Harness", "Trajectory", "Evaluator", "NoScore", "Stale", "Surplus", "Other"),
)
ATTEMPTS_FAILED = _counter(
    "attempts_failed_total",
    "Attempts of executions that the infrastructure failed. The execution begins anew, and is dropped after the third.",
    "increase(tidemill_attempts_failed_total[1h])",
)
EXECUTIONS = _gauge(
    "executions",
    "Executions by state. Pending wait for a place, Running have a live harness, Evaluating are being scored, Scored and Dropped are final.",
    'tidemill_executions{state="Pending"}',
    ("job", "state"),
    state=("Pending", "Running", "Evaluating", "Scored", "Dropped"),
)
EXECUTIONS_LOST = _gauge(
    "executions_lost",
    "Executions that the store of a job under way holds as running and that nobody runs. Must be 0; more than 0 for minutes is a defect.",
    "tidemill_executions_lost > 0",
)
EXECUTION_SECONDS = _histogram(
    "execution_seconds",
    "From the first start of an execution to its final outcome.",
    "histogram_quantile(0.5, sum by (job, le) (rate(tidemill_execution_seconds_bucket[6h])))",
    _LONG_BUCKETS,
    ("job", "outcome"),
    "seconds",
    outcome=("Scored", "Dropped"),
)
EXECUTION_SCORE = _histogram(
    "execution_score",
    "Scores of executions, held-out tasks left out.",
    "rate(tidemill_execution_score_sum[1h]) / rate(tidemill_execution_score_count[1h])",
    (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0),
)
WATERLEVEL = _gauge(
    "waterlevel",
    "w = d - f: executions that are dispatched and not final. A cell may leave rollout when w <= C_R - C_e. It never rises inside a burst under "
    "boundary dispatch.",
    "tidemill_rollout_capacity - tidemill_waterlevel",
)
ROLLOUT_CAPACITY = _gauge(
    "rollout_capacity",
    "C_R: executions that the cells now granted to rollout and the standalone pool can serve at once.",
    "tidemill_rollout_capacity - tidemill_waterlevel",
)

# Groups and micro-steps.

GROUPS = _gauge(
    "groups",
    "Groups by state. Open: an execution is not final; Ready: may be trained; Assigned: is part of the present step; Measured: held-out tasks.",
    'tidemill_groups{state="Ready"}',
    ("job", "state"),
    state=("Open", "Ready", "Assigned", "Trained", "Measured", "Dropped"),
)
GROUPS_DUE = _gauge("groups_due", "Groups that the present burst still has to train, whether ready or not.", "tidemill_groups_due")
GROUPS_TRAINED = _counter("groups_trained_total", "Groups that a committed step has trained.", "rate(tidemill_groups_trained_total[1h])")
GROUPS_DROPPED = _counter(
    "groups_dropped_total",
    "Groups that are not trained, by reason. TooFewScores: fewer than two of the executions were scored; Stale: beyond the staleness bound; "
    "Surplus: dispatched for steps that fell away; EqualScores: where the job skips such groups.",
    "sum by (job, reason) (increase(tidemill_groups_dropped_total[1h]))",
    ("job", "reason"),
    reason=("TooFewScores", "Stale", "Surplus", "EqualScores", "Other"),
)
GROUPS_EQUAL = _counter(
    "groups_equal_total",
    "Groups of committed steps whose scores were all equal: they have taken their places, and nothing of them is trained.",
    "rate(tidemill_groups_equal_total[1h]) / rate(tidemill_groups_trained_total[1h])",
)
MICROSTEPS = _gauge(
    "microsteps",
    "Micro-steps by state. Leased are being computed, Counted are in the core's gradient sum, Committed in durable weights.",
    'tidemill_microsteps{state="Queued"}',
    ("job", "state"),
    state=("Queued", "Leased", "Counted", "Committed"),
)
MICROSTEPS_LEASED = _counter("microsteps_leased_total", "Leases of micro-steps handed out.", "rate(tidemill_microsteps_leased_total[10m])")
MICROSTEPS_RETURNED = _counter(
    "microsteps_returned_total",
    "Micro-steps that a trainer gave back without their being counted: it left, or could not get the weights.",
    "increase(tidemill_microsteps_returned_total[1h])",
)
MICROSTEPS_REQUEUED = _counter(
    "microsteps_requeued_total",
    "Micro-steps queued again because their work was lost. Expired: the lease ran out; TrainerReplaced: it was restarted; CellLost: it is silent or "
    "failed; CoreReplaced: the sum was lost with the core; NotHeld: the answer that leased them got lost.",
    "sum by (job, reason) (increase(tidemill_microsteps_requeued_total[1h]))",
    ("job", "reason"),
    reason=("Expired", "TrainerReplaced", "CellLost", "CoreReplaced", "NotHeld"),
)

# Steps and bursts.

STEP = _gauge("step", "Committed optimizer steps. After a restart from an older checkpoint it goes back.", "tidemill_step / tidemill_steps_planned")
STEPS_PLANNED = _gauge("steps_planned", "Optimizer steps of the whole job.", "tidemill_steps_planned - tidemill_step")
BURST = _gauge("burst", "Number of the present burst, from 1; 0 outside of bursts.", "changes(tidemill_burst[1h])")
STEP_SECONDS = _histogram(
    "step_seconds",
    "From the opening of a step to its commit.",
    "rate(tidemill_step_seconds_sum[6h]) / rate(tidemill_step_seconds_count[6h])",
    _LONG_BUCKETS,
    unit="seconds",
)
STEP_SCORE = _gauge("step_score", "Mean score of the executions that the last committed step trained.", "tidemill_step_score")
HELD_OUT_SCORE = _gauge("held_out_score", "Mean score on held-out tasks at the last measurement.", "tidemill_held_out_score")
STALENESS_PUBLICATIONS = _gauge(
    "staleness_publications",
    "Largest staleness of a group in the last committed step: publications between the version it was dispatched under and the one trained on.",
    "tidemill_staleness_publications / tidemill_staleness_bound_publications",
)
STALENESS_UPDATES = _gauge(
    "staleness_updates", "The same in optimizer updates since the weights it was dispatched under.", "max_over_time(tidemill_staleness_updates[6h])"
)
STALENESS_BOUND = _gauge(
    "staleness_bound_publications",
    "The job's maxStaleness: what would exceed it makes the burst wait or is dropped.",
    "tidemill_staleness_publications >= tidemill_staleness_bound_publications",
)
BURST_GROUP_SECONDS = _gauge(
    "burst_group_seconds",
    "Mean duration of a group (first start to last outcome) among those of the last finished burst that were ready early or late.",
    'tidemill_burst_group_seconds{part="Late"} / on (job) tidemill_burst_group_seconds{part="Early"}',
    ("job", "part"),
    "seconds",
    part=("Early", "Late"),
)
BURST_GROUP_SCORE = _gauge(
    "burst_group_score",
    "Mean score of the groups of the last finished burst that were ready early or late. A lasting difference means that early steps see other tasks.",
    'tidemill_burst_group_score{part="Early"} - on (job) tidemill_burst_group_score{part="Late"}',
    ("job", "part"),
    part=("Early", "Late"),
)

# Training figures of the last committed step, as the core reports them.

LOSS = _gauge("loss", "Sum of the loss over the step's tokens, whose weights hold the normaliser B * N.", "tidemill_loss")
GRADIENT_NORM = _gauge("gradient_norm", "Norm of the step's gradient before clipping.", "max_over_time(tidemill_gradient_norm[1h])")
UPDATES_SKIPPED = _counter(
    "updates_skipped_total",
    "Steps whose gradient was not finite, so that the weights stayed as they were.",
    "increase(tidemill_updates_skipped_total[6h])",
)
CLIPPED_TOKENS = _gauge(
    "clipped_tokens_ratio", "Share of the step's tokens whose importance ratio was clipped.", "tidemill_clipped_tokens_ratio", unit="ratio"
)
CAPPED_TOKENS = _gauge(
    "capped_tokens_ratio",
    "Share of the step's tokens whose weight (old / behaviour policy) reached tokenWeightCap.",
    "tidemill_capped_tokens_ratio",
    unit="ratio",
)
LOGPROB = _gauge("logprob_mean", "Mean log-probability of the trained tokens under the trainer.", "tidemill_logprob_mean")
LOGPROB_DIFFERENCE = _gauge(
    "logprob_difference_mean",
    "Mean absolute difference of the trained tokens' log-probabilities, trainer against engine. Grows with staleness and with kernels that disagree.",
    "tidemill_logprob_difference_mean",
)
LEARNING_RATE = _gauge("learning_rate", "Learning rate of the last update.", "tidemill_learning_rate")
TRAINED_TOKENS = _counter(
    "trained_tokens_total", "Tokens whose log-probability was trained.", "rate(tidemill_trained_tokens_total[1h])", unit="tokens"
)
COMPUTED_TOKENS = _counter(
    "computed_tokens_total",
    "Tokens that went through the model in training, context included.",
    "rate(tidemill_computed_tokens_total[1h])",
    unit="tokens",
)
SHARED_TOKENS = _counter(
    "shared_tokens_total",
    "Tokens that training did not compute because sequences share prefixes.",
    "rate(tidemill_shared_tokens_total[1h]) / (rate(tidemill_shared_tokens_total[1h]) + rate(tidemill_computed_tokens_total[1h]))",
    unit="tokens",
)

# Publications and checkpoints.

POLICY_VERSION = _gauge("policy_version", "The published policy version; -1 before the first.", "tidemill_policy_version")
PUBLICATION_LOAD_SECONDS = _histogram(
    "publication_load_seconds",
    "From a publication to the moment that a cell in rollout has loaded and verified it.",
    "histogram_quantile(0.9, sum by (job, le) (rate(tidemill_publication_load_seconds_bucket[6h])))",
    _FLIP_BUCKETS,
    unit="seconds",
)
CHECKPOINT_TIME = _gauge(
    "checkpoint_timestamp_seconds",
    "When the newest durable checkpoint was committed, in Unix time.",
    "time() - tidemill_checkpoint_timestamp_seconds",
    unit="seconds",
)

# Flips of all cells, and how the conductor sees each cell.

FLIP_SECONDS = _histogram(
    "flip_seconds",
    "Duration of a flip, order to acknowledgement, as its cell measured it.",
    "histogram_quantile(0.5, sum by (job, to, le) (rate(tidemill_flip_seconds_bucket[6h])))",
    _FLIP_BUCKETS,
    ("job", "to"),
    "seconds",
    to=_ROLES,
)
FLIP_PHASE_SECONDS = _histogram(
    "flip_phase_seconds",
    "Duration of one phase of a flip. Attempts and repetitions of a phase add up.",
    "sum by (job, to, phase) (rate(tidemill_flip_phase_seconds_sum[6h])) / sum by (job, to, phase) (rate(tidemill_flip_phase_seconds_count[6h]))",
    _FLIP_BUCKETS,
    ("job", "to", "phase"),
    "seconds",
)
CELL_GRANTED_ROLE = _gauge(
    "cell_granted_role",
    "1 for the role that the cell is granted, 0 for the other.",
    "sum by (job, role) (tidemill_cell_granted_role)",
    ("job", "cell", "role"),
    role=_ROLES,
)
CELL_GRANTED_EPOCH = _gauge(
    "cell_granted_epoch",
    "Number of the cell's present grant. It only grows.",
    "tidemill_cell_granted_epoch - on (job, cell) tidemill_cell_epoch",
    ("job", "cell"),
)
CELL_USABLE = _gauge(
    "cell_usable",
    "0 for a cell that failed, is silent, leaving or cordoned: it serves nothing and is granted nothing.",
    "tidemill_cell_usable == 0",
    ("job", "cell"),
)
CELL_SETTLED = _gauge(
    "cell_settled", "1 when the granted role and epoch are acknowledged and in effect.", "tidemill_cell_settled == 0", ("job", "cell")
)
CELL_SILENT_SECONDS = _gauge(
    "cell_silent_seconds",
    "Since the cell's agent last reported; it does so every 2 s.",
    "tidemill_cell_silent_seconds > 60",
    ("job", "cell"),
    "seconds",
)
CELL_WEIGHTS_MISMATCH = _gauge(
    "cell_weights_mismatch",
    "1 when the cell's engine holds other weights than were published under their version. It gets no executions.",
    "tidemill_cell_weights_mismatch == 1",
    ("job", "cell"),
)

ALL: tuple[Metric, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))

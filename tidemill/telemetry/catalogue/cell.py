"""Metrics of a cell's agent. The seconds are its own clock's and begin with its process; those of all roles together are the cell's time."""

from __future__ import annotations

from tidemill.telemetry.metric import Kind, Metric

_CELL = ("job", "cell")
_ROLES = ("Rollout", "Training")
_STATES = ("Rollout", "Training", "Flipping", "Starting", "Failed")
_CHILDREN = ("engine", "trainer")


def _counter(name: str, help: str, formula: str, labels: tuple[str, ...] = _CELL, unit: str = "", **values: tuple[str, ...]) -> Metric:
    return Metric(f"tidemill_cell_{name}", Kind.COUNTER, help, formula, "cell", labels, unit, values=values)


def _gauge(name: str, help: str, formula: str, labels: tuple[str, ...] = _CELL, unit: str = "", **values: tuple[str, ...]) -> Metric:
    return Metric(f"tidemill_cell_{name}", Kind.GAUGE, help, formula, "cell", labels, unit, values=values)


ROLE = _gauge(
    "role",
    "1 for what the cell does now, 0 for the rest. Rollout and Training are acknowledged roles; Flipping is the way to another; Starting: nothing is "
    "acknowledged yet; Failed: a child died five times.",
    "sum by (job, role) (tidemill_cell_role)",
    (*_CELL, "role"),
    role=_STATES,
)
EPOCH = _gauge("epoch", "Acknowledged epoch; -1 before the first.", "changes(tidemill_cell_epoch[1h])")
VERSION = _gauge(
    "policy_version",
    "Version of the verified weights in the engine; -1 without any.",
    "tidemill_policy_version - on (job) group_right tidemill_cell_policy_version",
)
CAPACITY = _gauge("capacity", "C_e: executions that the cell can serve at once.", "sum by (job) (tidemill_cell_capacity)")
ROLE_SECONDS = _counter(
    "role_seconds_total",
    "Seconds that the cell spent in each role. Utilization of a role: sum(rate(this{role=...})) / number of cells. Seconds of a flip are those from "
    "the order to the acknowledgement.",
    "sum by (job, role) (rate(tidemill_cell_role_seconds_total[5m]))",
    (*_CELL, "role"),
    "seconds",
    role=_STATES,
)
IDLE_SECONDS = _counter(
    "idle_seconds_total",
    "Seconds in which the cell's GPUs had nothing to compute, by cause, outside of training. NoWork: in rollout without a call; WaitingForWeights: "
    "for a publication or its loading; Draining: calls leave before a flip; Flipping: the other phases of one; Starting: until the first role. What "
    "the trainer waits for is tidemill_trainer_idle_seconds_total.",
    'sum by (job, cell, cause) (rate({__name__=~"tidemill_(cell|trainer)_idle_seconds_total"}[5m]))',
    (*_CELL, "cause"),
    "seconds",
    cause=("NoWork", "WaitingForWeights", "Draining", "Flipping", "Starting", "Failed"),
)
FLIPS = _counter(
    "flips_total", "Flips that the cell finished.", "sum by (job, cell) (increase(tidemill_cell_flips_total[1h]))", (*_CELL, "to"), to=_ROLES
)
FLIP_SECONDS = _counter(
    "flip_seconds_total",
    "Seconds of finished flips.",
    "sum by (job, cell, to) (rate(tidemill_cell_flip_seconds_total[6h])) / sum by (job, cell, to) (rate(tidemill_cell_flips_total[6h]))",
    (*_CELL, "to"),
    "seconds",
    to=_ROLES,
)
FLIP_PHASE_SECONDS = _counter(
    "flip_phase_seconds_total",
    "Seconds of the phases of finished flips; their distribution over all cells is tidemill_flip_phase_seconds.",
    "sum by (job, cell, to, phase) (rate(tidemill_cell_flip_phase_seconds_total[6h]))",
    (*_CELL, "to", "phase"),
    "seconds",
)
LAST_FLIP_SECONDS = _gauge(
    "last_flip_seconds", "Duration of the cell's last flip.", "max by (job, to) (tidemill_cell_last_flip_seconds)", (*_CELL, "to"), "seconds"
)
PHASE_FAILURES = _counter(
    "phase_failures_total", "Attempts at a phase of a flip that failed; each is repeated.", "increase(tidemill_cell_phase_failures_total[1h])"
)
CALLS = _counter("calls_total", "Generate calls that the cell took.", "rate(tidemill_cell_calls_total[5m])")
LIVE_CALLS = _gauge("live_calls", "Generate calls under way in the cell.", "tidemill_cell_live_calls / tidemill_cell_capacity")
MOVED_CALLS = _counter(
    "moved_calls_total",
    "Calls moved away by a flip after the cell had sampled at least one token of them.",
    "increase(tidemill_cell_moved_calls_total[1h])",
)
WEIGHT_LOADS = _counter(
    "weight_loads_total", "Publications that the engine loaded and that were verified.", "increase(tidemill_cell_weight_loads_total[1h])"
)
WEIGHT_LOAD_SECONDS = _counter(
    "weight_load_seconds_total",
    "Seconds of loading and verifying them.",
    "rate(tidemill_cell_weight_load_seconds_total[6h]) / rate(tidemill_cell_weight_loads_total[6h])",
    unit="seconds",
)
WEIGHT_LOAD_BYTES = _counter(
    "weight_load_bytes_total",
    "Bytes of weights loaded.",
    "rate(tidemill_cell_weight_load_bytes_total[6h]) / rate(tidemill_cell_weight_load_seconds_total[6h])",
    unit="bytes",
)
WEIGHT_LOAD_FAILURES = _counter(
    "weight_load_failures_total",
    "Publications that could not be loaded. Checksum: what the engine holds is not what was published; it is loaded again. NotLoaded: the core did "
    "not offer it, or the bytes that came were not those announced.",
    'increase(tidemill_cell_weight_load_failures_total{reason="Checksum"}[1h]) > 0',
    (*_CELL, "reason"),
    reason=("Checksum", "NotLoaded"),
)
CHILD_STARTS = _counter(
    "child_starts_total",
    "Starts of a child process. Restarts are all but the first.",
    "increase(tidemill_cell_child_starts_total[1h])",
    (*_CELL, "rank", "child"),
)
CHILD_CPU_SECONDS = _counter(
    "child_cpu_seconds_total",
    "CPU seconds of the child's processes in its present life.",
    "rate(tidemill_cell_child_cpu_seconds_total[5m])",
    (*_CELL, "rank", "child"),
    "seconds",
)
CHILD_MEMORY_BYTES = _gauge(
    "child_memory_bytes",
    "Resident memory of the child's processes. Pages that several share count in each.",
    "sum by (job, cell) (tidemill_cell_child_memory_bytes)",
    (*_CELL, "rank", "child"),
    "bytes",
)

ALL: tuple[Metric, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))

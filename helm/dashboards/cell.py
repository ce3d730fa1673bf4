"""*Cell*: one cell. Its role, its engine, its trainer, its GPUs and ports, its flips."""

from __future__ import annotations

from helm.dashboards.panel import NEEDS_A_GPU, NEEDS_RDMA, NEEDS_THE_ENGINES_METRICS, Board, Panel, Query, Row, Shape
from helm.dashboards.queries import CELL, average, rate, role_of_cells
from helm.dashboards.words import ROLES


def _now(title: str, description: str, expr: str, *thresholds: tuple[float, str], unit: str = "short", empty: str = "") -> Panel:
    return Panel(title, description, (Query(expr),), Shape.STAT, unit, 4, 4, thresholds, empty=empty)


NOW = Row(
    "Now",
    (
        Panel(
            "Role",
            "What the cell does. Starting or Flipping for minutes, or Failed: `kubectl describe gpucell JOB-CELL` says what it waits for.",
            (Query(role_of_cells(CELL)),),
            Shape.STAT,
            width=4,
            height=4,
            states=ROLES,
        ),
        _now(
            "Epochs behind its grant",
            "0 when what is granted is acknowledged. More for minutes: a phase of the flip does not end.",
            f"max(tidemill_cell_granted_epoch{{{CELL}}} - on (cluster, namespace, job, cell) tidemill_cell_epoch)",
            (1, "orange"),
        ),
        _now(
            "Versions behind",
            "0 when the engine holds the newest publication. In training it holds none, and this is the whole version.",
            f"max(tidemill_policy_version{{{CELL.rsplit(',', 1)[0]}}}) - max(tidemill_cell_policy_version{{{CELL}}})",
        ),
        _now("Calls", "Calls that the engine serves now.", f"sum(tidemill_cell_live_calls{{{CELL}}})"),
        _now(
            "Calls of capacity",
            "Near 1 and calls wait: more cells, or a larger capacity. Near 0 in rollout: this cell could train.",
            f"sum(tidemill_cell_live_calls{{{CELL}}}) / sum(tidemill_cell_capacity{{{CELL}}})",
            unit="percentunit",
        ),
        _now(
            "Silent",
            "Since its agent last reported; every 2 s is right.",
            f"max(tidemill_cell_silent_seconds{{{CELL}}})",
            (15, "orange"),
            (60, "red"),
            unit="s",
        ),
    ),
)

ROLE = Row(
    "Role and flips",
    (
        Panel(
            "Role",
            "Blue serves agents, orange trains, purple is between.",
            (Query(role_of_cells(CELL), "{{cell}}"),),
            Shape.TIMELINE,
            width=24,
            height=5,
            states=ROLES,
        ),
        Panel(
            "Time by role",
            "Share of its time. Much Flipping: it flips too often, or slowly.",
            (Query(rate("tidemill_cell_role_seconds_total", CELL, "role"), "{{role}}"),),
            Shape.STACKED,
            "percentunit",
        ),
        Panel(
            "Idle, by cause",
            "Share of its time in which its GPUs had nothing to do.",
            (
                Query(rate("tidemill_cell_idle_seconds_total", CELL, "cause"), "rollout {{cause}}"),
                Query(rate("tidemill_trainer_idle_seconds_total", CELL, "cause"), "training {{cause}}"),
            ),
            Shape.STACKED,
            "percentunit",
        ),
        Panel(
            "Last flip",
            "By direction. Compare with the job's median.",
            (
                Query(f"max by (to) (tidemill_cell_last_flip_seconds{{{CELL}}})", "to {{to}}"),
                Query(
                    f"sum by (to) (increase(tidemill_cell_flip_seconds_total{{{CELL}}}[6h])) / sum by (to) "
                    f"(increase(tidemill_cell_flips_total{{{CELL}}}[6h]))",
                    "to {{to}}, mean of 6 h",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Phases of flips",
            "Seconds spent in each phase, in an hour.",
            (Query(f"sum by (to, phase) (increase(tidemill_cell_flip_phase_seconds_total{{{CELL}}}[1h]))", "to {{to}}: {{phase}}"),),
            Shape.STACKED,
            "s",
        ),
        Panel(
            "Flips, and attempts that failed",
            "In an hour.",
            (
                Query(f"sum by (to) (increase(tidemill_cell_flips_total{{{CELL}}}[1h]))", "to {{to}}"),
                Query(f"sum(increase(tidemill_cell_phase_failures_total{{{CELL}}}[1h]))", "failed attempts"),
            ),
        ),
        Panel(
            "Calls moved away",
            "By flips, in an hour.",
            (Query(f"sum(increase(tidemill_cell_moved_calls_total{{{CELL}}}[1h]))", "calls"),),
        ),
    ),
)

ENGINE = Row(
    "Engine and trainer",
    (
        Panel(
            "Calls",
            "Under way, capacity, and taken each second.",
            (
                Query(f"sum(tidemill_cell_live_calls{{{CELL}}})", "under way"),
                Query(f"sum(tidemill_cell_capacity{{{CELL}}})", "capacity"),
                Query(f"sum(rate(tidemill_cell_calls_total{{{CELL}}}[$__rate_interval]))", "taken/s"),
            ),
        ),
        Panel(
            "Requests in the engine",
            "As vLLM counts them. Waiting for long, or preempted: the KV cache is full, lower spec.cells.capacity.",
            (
                Query(f"sum(vllm:num_requests_running{{{CELL}}})", "running"),
                Query(f"sum(vllm:num_requests_waiting{{{CELL}}})", "waiting"),
                Query(f"sum(increase(vllm:num_preemptions_total{{{CELL}}}[1h]))", "preempted in an hour"),
            ),
            empty=NEEDS_THE_ENGINES_METRICS,
        ),
        Panel(
            "KV cache",
            "In use, and share of prompt tokens that were found in it. A conversation's next call should hit: low shares mean that calls move "
            "between cells.",
            (
                Query(f"max(vllm:kv_cache_usage_perc{{{CELL}}})", "in use"),
                Query(
                    f"sum(rate(vllm:prefix_cache_hits_total{{{CELL}}}[10m])) / sum(rate(vllm:prefix_cache_queries_total{{{CELL}}}[10m]))",
                    "prefix hits",
                ),
            ),
            unit="percentunit",
            maximum=1.0,
            empty=NEEDS_THE_ENGINES_METRICS,
        ),
        Panel(
            "Trainer, by activity",
            "Share of its time. Compute should be most of it while the cell trains; HandOver grows with slow networks, Update with slow disks.",
            (Query(rate("tidemill_trainer_busy_seconds_total", CELL, "activity"), "{{activity}}"),),
            Shape.STACKED,
            "percentunit",
        ),
        Panel(
            "Tokens computed",
            "By the trainer, context included; and per second of computing.",
            (
                Query(f"sum(rate(tidemill_trainer_computed_tokens_total{{{CELL}}}[10m]))", "tokens/s"),
                Query(
                    f"sum(rate(tidemill_trainer_computed_tokens_total{{{CELL}}}[10m])) / "
                    f'sum(rate(tidemill_trainer_busy_seconds_total{{{CELL}, activity="Compute"}}[10m]))',
                    "tokens per second of computing",
                ),
            ),
        ),
        Panel(
            "Micro-steps and steps",
            "Micro-steps a minute, and how many steps its weights are behind the job's: 0 while it trains.",
            (
                Query(f"60 * sum(rate(tidemill_trainer_microsteps_total{{{CELL}}}[10m]))", "micro-steps a minute"),
                Query(f"max(tidemill_step{{{CELL.rsplit(',', 1)[0]}}}) - max(tidemill_trainer_step{{{CELL}}})", "steps behind"),
            ),
        ),
        Panel(
            "Weights and gradients",
            "Bytes a second that the trainer reads and hands over, and that the engine loads.",
            (
                Query(f"sum(rate(tidemill_trainer_weight_bytes_total{{{CELL}}}[10m]))", "weights read by the trainer"),
                Query(f"sum(rate(tidemill_trainer_gradient_bytes_total{{{CELL}}}[10m]))", "gradients handed over"),
                Query(f"sum(rate(tidemill_cell_weight_load_bytes_total{{{CELL}}}[10m]))", "weights loaded by the engine"),
            ),
            unit="Bps",
        ),
        Panel(
            "Loading a publication",
            "Mean seconds until the engine has loaded and verified it, of the last 6 h.",
            (
                Query(
                    average("tidemill_cell_weight_loads_total", "tidemill_cell_weight_load_seconds_total", CELL),
                    "seconds",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Checksums that did not fit",
            "In an hour, of the engine's weights and the trainer's transfers. They are pulled again; many: the node's memory or network is "
            "broken, drain it.",
            (
                Query(f"sum by (reason) (increase(tidemill_cell_weight_load_failures_total{{{CELL}}}[1h]))", "engine: {{reason}}"),
                Query(f"sum by (kind) (increase(tidemill_trainer_checksum_failures_total{{{CELL}}}[1h]))", "trainer: {{kind}}"),
            ),
        ),
        Panel(
            "CPU of engine and trainer",
            "Cores. Where there is no GPU this is what the cell computes with.",
            (Query(f"sum by (child) (rate(tidemill_cell_child_cpu_seconds_total{{{CELL}}}[$__rate_interval]))", "{{child}}"),),
            Shape.STACKED,
        ),
        Panel(
            "Memory of engine and trainer",
            "Resident. Growing from flip to flip: slept memory leaks, restart the cell.",
            (Query(f"sum by (child) (tidemill_cell_child_memory_bytes{{{CELL}}})", "{{child}}"),),
            unit="bytes",
        ),
        Panel(
            "Restarts of engine and trainer",
            "In an hour. After five in a row the cell fails; its log in logs/ of the work folder has the last lines.",
            (Query(f"sum by (child) (increase(tidemill_cell_child_starts_total{{{CELL}}}[1h]))", "{{child}}"),),
        ),
    ),
)

GPU = Row(
    "GPUs and RDMA",
    tuple(
        Panel(title, description, tuple(Query(*query) for query in queries), unit=unit, maximum=maximum, thresholds=thresholds, empty=empty)
        for title, description, queries, unit, maximum, thresholds, empty in (
            (
                "GPU utilization and SM activity",
                "A GPU that is used with few busy multiprocessors runs small kernels: larger batches (capacity, micro-steps).",
                (
                    (f"avg by (rank, gpu) (tidemill_gpu_utilization_ratio{{{CELL}}})", "{{rank}}/{{gpu}} used"),
                    (f"avg by (rank, gpu) (tidemill_gpu_sm_activity_ratio{{{CELL}}})", "{{rank}}/{{gpu}} busy SMs"),
                ),
                "percentunit",
                1.0,
                (),
                NEEDS_A_GPU,
            ),
            (
                "GPU memory",
                "In use. Full at a flip: the one that should sleep holds memory; restart the cell.",
                (
                    (f"max by (rank, gpu) (tidemill_gpu_memory_used_bytes{{{CELL}}})", "{{rank}}/{{gpu}}"),
                    (f"min(tidemill_gpu_memory_size_bytes{{{CELL}}})", "size"),
                ),
                "bytes",
                None,
                (),
                NEEDS_A_GPU,
            ),
            (
                "GPU power",
                "Drawn now.",
                ((f"max by (rank, gpu) (tidemill_gpu_power_watts{{{CELL}}})", "{{rank}}/{{gpu}}"),),
                "watt",
                None,
                (),
                NEEDS_A_GPU,
            ),
            (
                "GPU temperature",
                "Above 85 the clocks are held down: look at the node's cooling.",
                ((f"max by (rank, gpu) (tidemill_gpu_temperature_celsius{{{CELL}}})", "{{rank}}/{{gpu}}"),),
                "celsius",
                None,
                ((85.0, "red"),),
                NEEDS_A_GPU,
            ),
            (
                "GPU clocks held down",
                "By reason. hardware_*, power_brake: the node's power or cooling; drain it if it stays.",
                ((f"sum by (reason) (tidemill_gpu_throttled{{{CELL}}})", "{{reason}}"),),
                "short",
                None,
                (),
                NEEDS_A_GPU,
            ),
            (
                "GPUs lost, and XID errors",
                "Any: the runbook of TidemillGpuErrors.",
                (
                    (f"max by (rank, gpu) (tidemill_gpu_lost{{{CELL}}})", "{{rank}}/{{gpu}} lost"),
                    (f"sum by (rank, gpu, xid) (tidemill_gpu_xid_errors_total{{{CELL}}})", "{{rank}}/{{gpu}} XID {{xid}}"),
                ),
                "short",
                None,
                ((1.0, "red"),),
                NEEDS_A_GPU,
            ),
            (
                "NVLink",
                "Bytes a second between the cell's GPUs.",
                (
                    (f"sum by (rank) (rate(tidemill_gpu_nvlink_sent_bytes_total{{{CELL}}}[$__rate_interval]))", "rank {{rank}} sent"),
                    (f"sum by (rank) (rate(tidemill_gpu_nvlink_received_bytes_total{{{CELL}}}[$__rate_interval]))", "rank {{rank}} received"),
                ),
                "Bps",
                None,
                (),
                NEEDS_A_GPU,
            ),
            (
                "RDMA",
                "Bytes a second at the ports that the cell may use.",
                (
                    (f"sum by (rank, device) (rate(tidemill_rdma_sent_bytes_total{{{CELL}}}[$__rate_interval]))", "{{rank}}/{{device}} sent"),
                    (f"sum by (rank, device) (rate(tidemill_rdma_received_bytes_total{{{CELL}}}[$__rate_interval]))", "{{rank}}/{{device}} received"),
                ),
                "Bps",
                None,
                (),
                NEEDS_RDMA,
            ),
            (
                "RDMA ports: errors, and links that are down",
                "In an hour. A link that is down or flaps makes every transfer of the cell slow or fail: cordon the node.",
                (
                    (f"sum by (rank, device, port) (increase(tidemill_rdma_errors_total{{{CELL}}}[1h]))", "{{rank}}/{{device}} errors"),
                    (f"count by (rank, device, port) (tidemill_rdma_active{{{CELL}}} == 0)", "{{rank}}/{{device}} down"),
                ),
                "short",
                None,
                (),
                NEEDS_RDMA,
            ),
        )
    ),
)

BOARD = Board(
    "tidemill-cell",
    "Cell",
    "One cell: role, engine, trainer, GPUs, RDMA ports, flips.",
    ("cluster", "namespace", "job", "cell"),
    ("cluster", "namespace", "cell"),
    (NOW, ROLE, ENGINE, GPU),
    source="tidemill_cell_capacity",
    annotated=True,
)

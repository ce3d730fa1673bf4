"""*Fleet*: all jobs. Which cells do what, whether they idle and why, and which job needs somebody."""

from __future__ import annotations

from helm.dashboards.panel import NEEDS_A_FAILURE, NEEDS_A_GPU, NEEDS_AN_ALERT, Board, Panel, Query, Row, Shape
from helm.dashboards.queries import FLEET, rate
from helm.dashboards.words import PHASES, phase_of_jobs

_BY_JOB = "cluster, namespace, job"
_CHOICE = ("namespace", "job")


def _count(title: str, description: str, expr: str, *thresholds: tuple[float, str]) -> Panel:
    return Panel(title, description, (Query(expr),), Shape.STAT, width=4, height=4, thresholds=thresholds)


ATTENTION = Row(
    "Does anything need me?",
    (
        _count("Jobs running", "Jobs that make progress now.", f'count(tidemill_job_phase{{{FLEET}, phase="Running"}} == 1) or vector(0)'),
        _count(
            "Jobs held back",
            "Paused by a condition, or failed. Open the job in the table below: its conditions say what holds it back.",
            f'count(tidemill_job_phase{{{FLEET}, phase=~"Paused|Failed"}} == 1) or vector(0)',
            (1, "red"),
        ),
        _count(
            "Cells in no role",
            "Cells that start, flip, or have failed. A few seconds at a flip are normal; minutes are not: open the cell.",
            f'count(tidemill_cell_role{{{FLEET}, role!~"Rollout|Training"}} == 1) or vector(0)',
            (1, "orange"),
        ),
        _count(
            "Executions lost",
            "Executions that the store holds as running and nobody runs. Must be 0; otherwise see the runbook of TidemillExecutionsLost.",
            f"sum(tidemill_executions_lost{{{FLEET}}}) or vector(0)",
            (1, "red"),
        ),
        _count(
            "Cells with wrong weights",
            "Their engines hold other weights than were published. They get no calls. See the runbook of TidemillWeightsMismatch.",
            f"sum(tidemill_cell_weights_mismatch{{{FLEET}}}) or vector(0)",
            (1, "red"),
        ),
        Panel(
            "GPUs lost",
            "GPUs that do not answer. Drain their node. Empty where there are no GPUs.",
            (Query(f"sum(tidemill_gpu_lost{{{FLEET}}})"),),
            Shape.STAT,
            width=4,
            height=4,
            thresholds=((1, "red"),),
            empty=NEEDS_A_GPU,
        ),
        Panel(
            "Jobs",
            "One row a job. A job whose steps stand still while its waterlevel is 0 waits for training; one whose waterlevel stands still waits for "
            "agents. Click a job to see it.",
            (
                Query(phase_of_jobs(FLEET, _BY_JOB), "phase"),
                Query(f"max by ({_BY_JOB}) (tidemill_step{{{FLEET}}})", "step"),
                Query(f"max by ({_BY_JOB}) (tidemill_steps_planned{{{FLEET}}})", "of"),
                Query(f"max by ({_BY_JOB}) (tidemill_waterlevel{{{FLEET}}})", "waterlevel"),
                Query(f"max by ({_BY_JOB}) (tidemill_rollout_capacity{{{FLEET}}})", "capacity"),
                Query(f"sum by ({_BY_JOB}) (tidemill_conditions{{{FLEET}}})", "conditions"),
                Query(f"max by ({_BY_JOB}) (tidemill_step_score{{{FLEET}}})", "score"),
            ),
            Shape.TABLE,
            width=14,
            height=9,
            states=PHASES,
            minimum=None,
            link="tidemill-job",
            variables=_CHOICE,
        ),
        Panel(
            "What holds jobs back",
            "Conditions by kind. StoreWritable and DiskSpace: free space on the conductor's volume. GatewayReady, CoreReady: look at their pods. "
            "CellReady: open the cell. `tidemill status JOB` has the text.",
            (Query(f"sum by ({_BY_JOB}, kind) (tidemill_conditions{{{FLEET}}}) > 0", "conditions"),),
            Shape.TABLE,
            width=5,
            height=9,
            minimum=None,
            empty=NEEDS_A_FAILURE,
            link="tidemill-job",
            variables=_CHOICE,
        ),
        Panel(
            "Alerts that fire",
            "From the chart's rules (prometheusRule.enabled). Each has a section in docs/runbooks.md.",
            (
                Query(
                    'count by (alertname, namespace, job, cell) (ALERTS{alertname=~"Tidemill.+", alertstate="firing", namespace=~"$namespace"})',
                    "firing",
                ),
            ),
            Shape.TABLE,
            width=5,
            height=9,
            minimum=None,
            empty=NEEDS_AN_ALERT,
        ),
    ),
)

CELLS = Row(
    "What cells do",
    (
        Panel(
            "Cells by role",
            "How many cells are in which role. Training rises as executions end and falls at each publication.",
            (Query(f"sum by (role) (tidemill_cell_role{{{FLEET}}})", "{{role}}"),),
            Shape.STACKED,
        ),
        Panel(
            "Time by role",
            "Cells' time by role. Flipping above a few percent: executions are too short for the flips; see Flips in the job.",
            (
                Query(
                    f"{rate('tidemill_cell_role_seconds_total', FLEET, 'role')} / ignoring (role) group_left "
                    f"sum(rate(tidemill_cell_role_seconds_total{{{FLEET}}}[$__rate_interval]))",
                    "{{role}}",
                ),
            ),
            Shape.STACKED,
            "percentunit",
            maximum=1.0,
        ),
        Panel(
            "Cells idle, by cause",
            "How many cells' GPUs wait, and for what. rollout NoWork: fewer executions than capacity, so cells could train earlier (prefetchSteps, "
            "stepsPerBurst) or there are too many. training NoWork: groups are not ready; more rollout, or shorter tasks. WaitingForWeights: see "
            "publications in the job.",
            (
                Query(rate("tidemill_cell_idle_seconds_total", FLEET, "cause"), "rollout {{cause}}"),
                Query(rate("tidemill_trainer_idle_seconds_total", FLEET, "cause"), "training {{cause}}"),
            ),
            Shape.STACKED,
        ),
        Panel(
            "Waterlevel against capacity",
            "Unfinished executions of each job over what its cells in rollout can serve. Above 1 executions queue; as it falls cells leave "
            "for training.",
            (
                Query(
                    f"max by ({_BY_JOB}) (tidemill_waterlevel{{{FLEET}}}) / (max by ({_BY_JOB}) (tidemill_rollout_capacity{{{FLEET}}}) > 0)",
                    "{{job}}",
                ),
            ),
            unit="percentunit",
            thresholds=((1, "orange"),),
            link="tidemill-job",
            variables=_CHOICE,
        ),
        Panel(
            "GPU utilization",
            "Mean over the GPUs of each job. Low while cells train: see what the trainer waits for. Low in rollout: the cells' capacity is "
            "too small.",
            (Query(f"avg by ({_BY_JOB}) (tidemill_gpu_utilization_ratio{{{FLEET}}})", "{{job}}"),),
            unit="percentunit",
            maximum=1.0,
            empty=NEEDS_A_GPU,
            link="tidemill-job",
            variables=_CHOICE,
        ),
        Panel(
            "Tokens",
            "Tokens sampled for agents and tokens trained, of all jobs.",
            (
                Query(f"sum(rate(tidemill_gateway_sampled_tokens_total{{{FLEET}}}[$__rate_interval]))", "sampled"),
                Query(f"sum(rate(tidemill_trained_tokens_total{{{FLEET}}}[10m]))", "trained"),
            ),
            unit="short",
        ),
    ),
)

BOARD = Board(
    "tidemill-fleet",
    "Fleet",
    "All RLJobs: which cells do what, whether they idle and why, and which job needs somebody. Begin here.",
    ("cluster", "namespace"),
    ("cluster", "namespace"),
    (ATTENTION, CELLS),
)

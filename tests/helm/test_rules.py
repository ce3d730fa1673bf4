"""The rules through promtool: a healthy job sets nothing off, and each trouble sets off its own alert and no other."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.dashboards.names import metrics_in
from tests.helm.chart import CHART, ROOT
from tests.prometheus import program
from tidemill.cli.main import main
from tidemill.telemetry.catalogue import ALL

RULES = CHART / "rules" / "tidemill.yaml"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text()

type Line = Callable[[int], float]
"""Value of a series at a minute."""

JOB = 'job="mill",namespace="rl"'
CELL = f'cell="cell-1",{JOB}'
GPU = f'gpu="0",rank="0",{CELL}'
MINUTES = 300


def always(value: float) -> Line:
    return lambda minute: value


def every(minutes: int, step: float = 1.0) -> Line:
    """A counter, or a number that goes up."""
    return lambda minute: minute // minutes * step


def until(when: int, before: Line, after: Line) -> Line:
    return lambda minute: before(minute) if minute < when else after(minute)


def stuck(line: Line, since: int = 60) -> Line:
    return lambda minute: line(min(minute, since))


def away_at_the_end(line: Line | None) -> Line | None:
    """Scraped no more for half an hour."""
    return until(MINUTES - 30, line, always(-1)) if line is not None else None


HEALTHY: dict[str, Line | None] = {
    f'tidemill_job_phase{{phase="Running",{JOB}}}': always(1),
    f'tidemill_job_phase{{phase="Paused",{JOB}}}': always(0),
    f"tidemill_job_suspended{{{JOB}}}": always(0),
    f"tidemill_gateway_calls_total{{{JOB}}}": every(1, 60),
    f"tidemill_executions_terminated_total{{{JOB}}}": every(2),
    f'tidemill_executions_dropped_total{{reason="Evaluator",{JOB}}}': every(70),
    f'tidemill_executions_dropped_total{{reason="Stale",{JOB}}}': always(0),
    f"tidemill_executions_lost{{{JOB}}}": always(0),
    f"tidemill_microsteps_leased_total{{{JOB}}}": every(5),
    f"tidemill_waterlevel{{{JOB}}}": lambda minute: 8 + minute % 20,
    f"tidemill_burst{{{JOB}}}": every(20),
    f"tidemill_step{{{JOB}}}": every(10),
    f"tidemill_step_seconds_sum{{{JOB}}}": every(10, 600),
    f"tidemill_step_seconds_count{{{JOB}}}": every(10),
    f"tidemill_checkpoint_timestamp_seconds{{{JOB}}}": every(10, 600),
    f"tidemill_staleness_publications{{{JOB}}}": always(1),  # as boundary dispatch keeps it
    f"tidemill_staleness_bound_publications{{{JOB}}}": always(1),
    f'tidemill_groups{{state="Ready",{JOB}}}': always(2),
    f'tidemill_groups_dropped_total{{reason="Stale",{JOB}}}': always(0),
    f"tidemill_policy_version{{{JOB}}}": every(20),
    f'tidemill_cell_flips_total{{to="Training",{CELL}}}': every(20),
    f'tidemill_cell_flips_total{{to="Rollout",{CELL}}}': every(20),
    f'tidemill_cell_last_flip_seconds{{to="Training",{CELL}}}': always(8),
    f'tidemill_flip_seconds_bucket{{to="Training",le="8",{JOB}}}': every(20, 4),
    f'tidemill_flip_seconds_bucket{{to="Training",le="+Inf",{JOB}}}': every(20, 4),
    f"tidemill_cell_settled{{{CELL}}}": always(1),
    f'tidemill_cell_role{{role="Rollout",{CELL}}}': lambda minute: minute // 10 % 2,
    f'tidemill_cell_role{{role="Training",{CELL}}}': lambda minute: 1 - minute // 10 % 2,
    f'tidemill_cell_role{{role="Flipping",{CELL}}}': always(0),
    f"tidemill_cell_weights_mismatch{{{CELL}}}": always(0),
    f'tidemill_cell_weight_load_failures_total{{reason="Checksum",{CELL}}}': every(120),
    f"tidemill_gpu_lost{{{GPU}}}": always(0),
    f'tidemill_gpu_xid_errors_total{{xid="31",{GPU}}}': always(2),  # of days ago
    'tidemill_operator_leader{namespace="ops",pod="a"}': always(1),
    'tidemill_operator_leader{namespace="ops",pod="b"}': always(0),
    'tidemill_operator_reconcile_seconds_count{namespace="ops",pod="a"}': every(1, 60),
    'tidemill_operator_reconcile_errors_total{namespace="ops",pod="a"}': every(30),
    'tidemill_operator_queue_depth{namespace="ops",pod="a"}': lambda minute: minute % 3,
}

ELSEWHERE = re.compile("tidemill_gpu|tidemill_operator")
"""What one machine may not have."""

MOVING = re.compile("gateway_calls|executions_terminated|microsteps_leased|tidemill_step{|policy_version|cell_flips")
"""What stands still when nothing happens."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is otherwise than in a healthy job (None: the series is absent), and which alert says so."""

    name: str
    alert: str
    otherwise: dict[str, Line | None]
    labels: dict[str, str] = field(default_factory=lambda: {"job": "mill", "namespace": "rl"})

    def __str__(self) -> str:
        return self.name


_CELL_LABELS = {"job": "mill", "namespace": "rl", "cell": "cell-1"}
_GPU_LABELS = {**_CELL_LABELS, "rank": "0", "gpu": "0"}
_OPERATOR = {"namespace": "ops"}

TROUBLES = (
    Trouble(
        "nothing happens any more",
        "TidemillJobStalled",
        {
            f'tidemill_groups{{state="Ready",{JOB}}}': always(0),
            **{name: stuck(line, 200) for name, line in HEALTHY.items() if line is not None and MOVING.search(name)},
        },
    ),
    Trouble(
        "a condition holds it back",
        "TidemillJobHeldBack",
        {f'tidemill_job_phase{{phase="Paused",{JOB}}}': always(1), f'tidemill_job_phase{{phase="Running",{JOB}}}': always(0)},
    ),
    Trouble(
        "agents call and none ends",
        "TidemillWaterlevelNotFalling",
        {f"tidemill_executions_terminated_total{{{JOB}}}": stuck(every(2)), f"tidemill_waterlevel{{{JOB}}}": always(9)},
    ),
    Trouble("stale groups are dropped", "TidemillStalenessAtBound", {f'tidemill_groups_dropped_total{{reason="Stale",{JOB}}}': every(10)}),
    Trouble("the bound is exceeded", "TidemillStalenessAtBound", {f"tidemill_staleness_publications{{{JOB}}}": always(2)}),
    Trouble("ready groups wait and no step ends", "TidemillStalenessAtBound", {f"tidemill_step{{{JOB}}}": stuck(every(10), 200)}),
    Trouble("evaluators crash", "TidemillEvaluatorFailures", {f'tidemill_executions_dropped_total{{reason="Evaluator",{JOB}}}': every(6)}),
    Trouble("executions get lost", "TidemillExecutionsLost", {f"tidemill_executions_lost{{{JOB}}}": always(1)}),
    Trouble("no checkpoint", "TidemillCheckpointOld", {f"tidemill_checkpoint_timestamp_seconds{{{JOB}}}": stuck(every(10, 600), 10)}),
    Trouble("a cell goes to and fro", "TidemillCellFlapping", {f'tidemill_cell_flips_total{{to="Training",{CELL}}}': every(3)}, labels=_CELL_LABELS),
    Trouble(
        "one flip is slow",
        "TidemillFlipSlow",
        {f'tidemill_cell_last_flip_seconds{{to="Training",{CELL}}}': until(295, always(8), always(40))},
        labels={**_CELL_LABELS, "to": "Training"},
    ),
    Trouble("a cell is silent", "TidemillCellInNoRole", {f"tidemill_cell_settled{{{CELL}}}": always(0)}, labels=_CELL_LABELS),
    Trouble(
        "a flip does not end",
        "TidemillCellInNoRole",
        {f'tidemill_cell_role{{role="Flipping",{CELL}}}': until(280, always(0), always(1))},
        labels=_CELL_LABELS,
    ),
    Trouble(
        "an engine holds other weights", "TidemillWeightsMismatch", {f"tidemill_cell_weights_mismatch{{{CELL}}}": always(1)}, labels=_CELL_LABELS
    ),
    Trouble(
        "checksums do not fit",
        "TidemillWeightsMismatch",
        {f'tidemill_cell_weight_load_failures_total{{reason="Checksum",{CELL}}}': every(5)},
        labels=_CELL_LABELS,
    ),
    Trouble("a GPU is lost", "TidemillGpuErrors", {f"tidemill_gpu_lost{{{GPU}}}": until(299, always(0), always(1))}, labels=_GPU_LABELS),
    Trouble(
        "a GPU reports an error for the first time",
        "TidemillGpuErrors",
        {
            f'tidemill_gpu_xid_errors_total{{xid="31",{GPU}}}': None,
            f'tidemill_gpu_xid_errors_total{{xid="79",{GPU}}}': until(295, always(-1), always(1)),
        },
        labels=_GPU_LABELS,
    ),
    Trouble(
        "a GPU reports another error",
        "TidemillGpuErrors",
        {f'tidemill_gpu_xid_errors_total{{xid="31",{GPU}}}': until(295, always(2), always(3))},
        labels=_GPU_LABELS,
    ),
    Trouble("nobody leads", "TidemillOperatorWithoutLeader", {'tidemill_operator_leader{namespace="ops",pod="a"}': always(0)}, labels=_OPERATOR),
    Trouble("two lead", "TidemillOperatorWithoutLeader", {'tidemill_operator_leader{namespace="ops",pod="b"}': always(1)}, labels=_OPERATOR),
    Trouble(
        "the operator has gone, and there are no jobs",
        "TidemillOperatorWithoutLeader",
        {name: away_at_the_end(line) if "operator" in name else None for name, line in HEALTHY.items()},
        labels={},
    ),
    Trouble(
        "there is no operator",
        "TidemillOperatorWithoutLeader",
        {name: None for name in HEALTHY if name.startswith("tidemill_operator")},
        labels={},
    ),
    Trouble(
        "passes fail", "TidemillPassesFail", {'tidemill_operator_reconcile_errors_total{namespace="ops",pod="a"}': every(1, 12)}, labels=_OPERATOR
    ),
    Trouble("passes are late", "TidemillPassesAreLate", {'tidemill_operator_queue_depth{namespace="ops",pod="a"}': always(3)}, labels=_OPERATOR),
)

QUIET: tuple[tuple[str, dict[str, Line | None]], ...] = (
    ("a healthy job", {}),
    (
        "one machine, without GPUs",
        dict.fromkeys(HEALTHY) | {name.replace(',namespace="rl"', ""): line for name, line in HEALTHY.items() if not ELSEWHERE.search(name)},
    ),
    (
        "a suspended job",
        {
            f"tidemill_job_suspended{{{JOB}}}": always(1),
            f'tidemill_groups{{state="Ready",{JOB}}}': always(0),
            **{name: always(7) for name in HEALTHY if MOVING.search(name)},
        },
    ),
    ("executions of an hour", {f"tidemill_executions_terminated_total{{{JOB}}}": every(60, 30)}),
    (
        "steps of two hours, each with a checkpoint",
        {
            f"tidemill_step{{{JOB}}}": every(120),
            f'tidemill_groups{{state="Ready",{JOB}}}': always(0),
            f"tidemill_step_seconds_sum{{{JOB}}}": every(120, 7200),
            f"tidemill_step_seconds_count{{{JOB}}}": every(120),
            f"tidemill_checkpoint_timestamp_seconds{{{JOB}}}": every(120, 7200),
        },
    ),
    ("a flip that takes a minute", {f'tidemill_cell_role{{role="Flipping",{CELL}}}': lambda minute: float(minute % 10 == 0)}),
    (
        "a job of one burst after the other, flips at each",
        {f"tidemill_policy_version{{{JOB}}}": every(5), f'tidemill_cell_flips_total{{to="Training",{CELL}}}': every(5)},
    ),
)


def series(otherwise: dict[str, Line | None]) -> list[dict[str, str]]:
    """As promtool takes it; a negative value stands for none."""
    lines = {name: line for name, line in {**HEALTHY, **otherwise}.items() if line is not None}
    return [
        {"series": name, "values": " ".join("_" if (value := line(minute)) < 0 else f"{value:g}" for minute in range(MINUTES + 1))}
        for name, line in lines.items()
    ]


def promtool(folder: Path, otherwise: dict[str, Line | None], asked: list[dict[str, Any]]) -> None:
    file = folder / "case.yaml"
    test = {"interval": "1m", "input_series": series(otherwise), "promql_expr_test": asked}
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "5m", "tests": [test]}))
    done = subprocess.run([program("promtool"), "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def firing(*alerts: dict[str, str]) -> dict[str, Any]:
    """What fires at the end, and nothing else."""
    samples = [{"labels": "ALERTS{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}", "value": 1} for labels in alerts]
    return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{MINUTES}m", "exp_samples": samples}


@pytest.mark.parametrize("trouble", TROUBLES, ids=str)
def test_a_trouble_sets_off_its_own_alert_and_no_other(trouble: Trouble, tmp_path: Path) -> None:
    rule = ALERTS[trouble.alert]
    promtool(tmp_path, trouble.otherwise, [firing({"alertname": trouble.alert, "alertstate": "firing", **rule["labels"], **trouble.labels})])


@pytest.mark.parametrize(("name", "otherwise"), QUIET, ids=[name for name, _ in QUIET])
def test_what_is_healthy_sets_off_nothing(name: str, otherwise: dict[str, Line | None], tmp_path: Path) -> None:
    promtool(tmp_path, otherwise, [firing()])


def test_every_alert_is_tested() -> None:
    assert {trouble.alert for trouble in TROUBLES} == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_only_what_its_labels_hold(alert: str) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(ALERTS[alert]["annotations"].values())))
    assert all(named <= set(trouble.labels) for trouble in TROUBLES if trouble.alert == alert)


def test_the_rules_ask_for_declared_metrics_with_their_labels() -> None:
    declared = {metric.name: metric for metric in ALL}
    recorded = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
    for group in GROUPS:
        for rule in group["rules"]:
            asked = metrics_in(rule["expr"])
            assert asked
            assert not {name for name in asked if name not in declared and name not in recorded}, rule


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_runbook_with_symptom_meaning_three_commands_and_remedy(alert: str) -> None:
    assert ALERTS[alert]["annotations"]["runbook_url"] == f"docs/runbooks.md#{alert.lower()}"
    section = re.search(rf"^## {alert}\n(.*?)(?=^## |\Z)", RUNBOOKS, flags=re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/runbooks.md has no section {alert}"
    parts = re.findall(r"^\*\*(\w+)\.\*\*", section[1], flags=re.MULTILINE)
    assert parts == ["Symptom", "Meaning", "Look", "Remedy"]
    commands = re.search(r"```\n(.*?)```", section[1], flags=re.DOTALL)
    assert commands is not None
    assert len(commands[1].strip().splitlines()) == 3


def test_no_runbook_is_left_over() -> None:
    assert set(re.findall(r"^## (Tidemill\w+)", RUNBOOKS, flags=re.MULTILINE)) == set(ALERTS)


def test_every_command_of_a_runbook_exists(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    known = set(re.findall(r"^    (\w+) ", capsys.readouterr().out, flags=re.MULTILINE))
    named = set(re.findall(r"^tidemill (\w+)", RUNBOOKS, flags=re.MULTILINE)) | set(re.findall(r"`tidemill (\w+)", RUNBOOKS))
    assert named >= {"status", "logs", "drain"}
    assert named <= known

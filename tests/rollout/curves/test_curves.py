from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

from tidemill.telemetry.events import AnyEvent, EvaluationEnded, ExecutionEnded, FlipEnded, StepCommitted, VersionPublished
from tidemill.wire.cell import Role
from tidemill_rollout.curves import services as curves_services
from tidemill_rollout.curves.points import Drawing, Point
from tidemill_rollout.curves.tensorboard import TensorBoard


def step(number: int, score: float | None = 0.5) -> StepCommitted:
    statistics = {"loss": 0.25 * number, "gradientNorm": 1.5, "clipShare": 0.125, "computeSeconds": 8.0, "tokens": 99.0}
    return StepCommitted(
        time=100.0 + number,
        step=number,
        seconds=30.0,
        groups=2,
        executions=8,
        trained_tokens=640,
        mean_score=score,
        staleness=1,
        statistics=statistics,
        contributions={"cell-0": 3},
        staleness_updates=2,
    )


def execution(seconds: float, dropped: str = "", evaluation: bool = False) -> ExecutionEnded:
    return ExecutionEnded(
        time=1.0, execution="g1-0", group=1, task="t", seconds=seconds, turns=4, sampled_tokens=80, score=1.0, dropped=dropped, evaluation=evaluation
    )


def flip(to: Role, **phases: float) -> FlipEnded:
    return FlipEnded(time=1.0, cell="cell-0", to=to, epoch=3, seconds=sum(phases.values()), phases=phases, calls_in_flight=0)


def drawn(*events: AnyEvent) -> list[Point]:
    drawing = Drawing()
    return [point for event in events for point in drawing.after(event)]


def at(points: Sequence[Point], number: int) -> dict[str, float]:
    return {point.curve: point.value for point in points if point.step == number}


def test_a_step_draws_score_loss_gradient_staleness_tokens_seconds_and_what_ended_since_the_step_before() -> None:
    points = drawn(
        execution(60.0),
        execution(20.0, dropped="NoScore"),
        execution(999.0, evaluation=True),
        flip(Role.TRAINING, drain=1.0, sleep=2.0),
        flip(Role.ROLLOUT, wake=0.5, weights=0.25),
        step(1),
        execution(10.0),
        step(2),
    )
    assert at(points, 1) == {
        "train/loss": 0.25,
        "train/gradient_norm": 1.5,
        "train/clip_share": 0.125,
        "train/tokens": 640,
        "train/groups": 2,
        "train/executions": 8,
        "score/mean": 0.5,
        "staleness/publications": 1,
        "staleness/updates": 2,
        "seconds/step": 30.0,
        "seconds/compute": 8.0,
        "seconds/flips_to_training": 3.0,
        "seconds/flips_to_rollout": 0.75,
        "seconds/flips_drain": 1.0,
        "seconds/flips_sleep": 2.0,
        "seconds/flips_wake": 0.5,
        "seconds/flips_weights": 0.25,
        "executions/ended": 2,
        "executions/dropped": 1,
        "executions/seconds": 40.0,
        "executions/turns": 4,
        "executions/sampled_tokens": 80,
    }
    second = at(points, 2)
    assert (second["executions/ended"], second["executions/seconds"], "seconds/flips_drain" in second) == (1, 10.0, False)


def test_a_step_without_scores_and_executions_draws_no_score() -> None:
    assert "score/mean" not in at(drawn(step(1, score=None)), 1)
    assert at(drawn(step(1)), 1)["executions/ended"] == 0


def test_a_held_out_score_lies_at_the_step_whose_weights_earned_it() -> None:
    publications = (VersionPublished(time=1.0, version=0, step=0, digest="a"), VersionPublished(time=1.0, version=1, step=4, digest="b"))
    late = EvaluationEnded(time=9.0, version=0, executions=8, mean_score=0.25)
    points = drawn(*publications, late, EvaluationEnded(time=9.0, version=1, executions=8, mean_score=0.75))
    assert points == [Point("score/held_out", 0, 0.25, 9.0), Point("score/held_out", 4, 0.75, 9.0)]


def read_back(folder: Path) -> list[tuple[str, int, float, float]]:
    """As TensorBoard reads it."""
    found = []
    for file in sorted(folder.glob("events.out.tfevents.*"), key=lambda file: file.name.rsplit(".", 1)[1]):
        for event in EventFileLoader(str(file)).Load():
            found += [(value.tag, event.step, event.wall_time, float(make_ndarray(value.tensor))) for value in event.summary.value]
    return found


@given(
    st.lists(
        st.builds(
            Point,
            st.text(min_size=1, max_size=300).filter(lambda text: text.isprintable()),
            st.integers(0, 2**40),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.floats(0, 4e9),
        ),
        max_size=5,
    )
)
def test_tensorboard_reads_what_was_written(tmp_path_factory: pytest.TempPathFactory, points: list[Point]) -> None:
    folder = tmp_path_factory.mktemp("curves")
    sink = TensorBoard(folder)
    sink.write(points)
    sink.close()
    assert read_back(folder) == [(point.curve, point.step, point.time, point.value) for point in points]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tidemill_rollout.curves.points import Point
from tidemill_rollout.curves.tensorboard import TensorBoard
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sink, (_, hard) = TensorBoard(Path(sys.argv[1])), resource.getrlimit(resource.RLIMIT_FSIZE)
points = [Point("train/loss", step, 0.5, 1.0) for step in range(20)]
resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
try:
    sink.write(points)
except OSError:
    print("told")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
sink.write(points)
"""


def test_a_disk_that_was_full_is_told_and_leaves_no_half_of_a_record(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "told\n"
    assert [number for _, number, _, _ in read_back(tmp_path)] == list(range(20))


def test_a_loss_that_is_no_number_is_drawn_as_such(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    sink.write([Point("train/loss", 3, math.nan, 1.0)])
    ((_, number, _, value),) = read_back(tmp_path)
    assert number == 3
    assert math.isnan(value)


class Calls(ModuleType):
    """A module that notes how it is called: the packages themselves are not installed here."""

    def __init__(self, name: str, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append((name, arguments, keywords))
            if name == "search_runs":
                return []
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"), experiment_id="7") if name in ("create_run", "get_experiment_by_name") else self

        return call


@pytest.mark.parametrize("environment", [{}, {"WANDB_API_KEY": ""}, {"WANDB_API_KEY": "k"}, {"MLFLOW_TRACKING_URI": "http://mlflow"}], ids=str)
def test_a_service_without_settings_or_without_its_package_is_not_drawn_to(environment: dict[str, str], tmp_path: Path) -> None:
    assert curves_services.services("mill", "mill-1", tmp_path, environment) == {}


def test_wandb_gets_one_row_a_step_in_a_run_that_a_restart_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Calls("wandb", [])
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    found = curves_services.services("mill", "mill-1", tmp_path, {"WANDB_API_KEY": "k", "WANDB_PROJECT": "rl"})
    sink = found["wandb"]()
    sink.write([Point("a", 1, 0.5, 9.0), Point("b", 1, 0.25, 9.0), Point("a", 2, 1.0, 10.0)])
    sink.close()
    assert wandb.calls == [
        ("init", (), {"project": "rl", "name": "mill", "id": "mill-1", "resume": "allow", "dir": str(tmp_path)}),
        ("define_metric", ("*",), {"step_metric": "step"}),
        ("log", ({"step": 1, "a": 0.5, "b": 0.25},), {}),
        ("log", ({"step": 2, "a": 1.0},), {}),
        ("finish", (), {}),
    ]


def test_mlflow_gets_each_point_with_its_step_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Calls("mlflow", [])
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    found = curves_services.services("mill", "mill-1", tmp_path, {"MLFLOW_TRACKING_URI": "http://mlflow"})
    sink = found["mlflow"]()
    sink.write([Point("a", 1, 0.5, 9.0)])
    sink.close()
    assert [name for name, _, _ in mlflow.calls] == [
        "MlflowClient",
        "get_experiment_by_name",
        "search_runs",
        "create_run",
        "log_metric",
        "set_terminated",
    ]
    assert mlflow.calls[3][1:] == (("7",), {"tags": {"tidemill_run": "mill-1"}, "run_name": "mill"})
    assert mlflow.calls[4][1:] == (("r1", "a", 0.5), {"timestamp": 9000, "step": 1})

"""Weights & Biases and MLflow: drawn to when their package is installed and their own environment variables say where. Tidemill installs neither."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from tidemill_rollout.curves.points import Point
from tidemill_rollout.follow import Sink

WANDB_SETTINGS = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL")
MLFLOW_SETTINGS = ("MLFLOW_TRACKING_URI",)


class Wandb:
    """A run called as the job, which a restarted conductor goes on with."""

    def __init__(self, module: Any, job: str, run: str, workdir: Path, environment: Mapping[str, str]) -> None:
        project = environment.get("WANDB_PROJECT", "tidemill")
        self._run = module.init(project=project, name=job, id=run, resume="allow", dir=str(workdir))
        self._run.define_metric("*", step_metric="step")  # held-out scores come later than steps; its own count would refuse them

    def write(self, points: Sequence[Point]) -> None:
        for step, of_step in groupby(points, key=lambda point: point.step):
            self._run.log({"step": step} | {point.curve: point.value for point in of_step})

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """A run called as the job in the experiment `MLFLOW_EXPERIMENT_NAME`, or `tidemill`; found again by its tag."""

    def __init__(self, module: Any, job: str, run: str, workdir: Path, environment: Mapping[str, str]) -> None:
        self._client = module.MlflowClient()
        name = environment.get("MLFLOW_EXPERIMENT_NAME", "tidemill")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
        known = self._client.search_runs([number], filter_string=f"tags.tidemill_run = '{run}'", max_results=1)
        self._id = known[0].info.run_id if known else self._client.create_run(number, tags={"tidemill_run": run}, run_name=job).info.run_id

    def write(self, points: Sequence[Point]) -> None:
        for point in points:
            self._client.log_metric(self._id, point.curve, point.value, timestamp=int(point.time * 1000), step=point.step)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def services(job: str, run: str, workdir: Path, environment: Mapping[str, str]) -> dict[str, Callable[[], Sink[Point]]]:
    """How to open those that are set up, by name."""
    known: tuple[tuple[str, tuple[str, ...], type[Wandb | Mlflow]], ...] = (("wandb", WANDB_SETTINGS, Wandb), ("mlflow", MLFLOW_SETTINGS, Mlflow))
    return {
        name: partial(_open, name, adapter, job, run, workdir, environment)
        for name, settings, adapter in known
        if any(environment.get(setting) for setting in settings) and importlib.util.find_spec(name) is not None
    }


def _open(name: str, adapter: type[Wandb | Mlflow], job: str, run: str, workdir: Path, environment: Mapping[str, str]) -> Sink[Point]:
    return adapter(importlib.import_module(name), job, run, workdir, environment)

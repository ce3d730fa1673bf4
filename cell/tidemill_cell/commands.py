"""How the children of a cell are started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tidemill.api.rljob import RLJob
from tidemill_cell.children import Program
from tidemill_cell.devices import Devices

PYTHON = (sys.executable, "-m")


def engine(job: RLJob, cell: str, port: int, model: Path, workdir: Path, devices: Devices, environment: Mapping[str, str]) -> Program:
    spec = job.spec
    command = (
        *(*PYTHON, "tidemill_rollout.engine"),
        *("--model", str(model)),
        *("--port", str(port)),
        *("--cell", cell),
        *("--max-length", str(spec.model.max_length)),
        *("--dtype", spec.model.dtype),
        *("--max-executions", str(spec.cells.capacity)),
    )
    return Program(
        name="engine",
        command=command,
        environment=dict(environment) | devices.environment,
        log=workdir / "logs" / f"{cell}-engine.log",
        health_url=f"http://127.0.0.1:{port}/control/v1/healthy",
        cores=devices.cores,
    )


def trainer(
    cell: str, port: int, manifest: Path, conductor_url: str, model: Path, workdir: Path, devices: Devices, environment: Mapping[str, str]
) -> Program:
    command = (
        *(*PYTHON, "tidemill_trainer"),
        *("--manifest", str(manifest)),
        *("--workdir", str(workdir)),
        *("--cell", cell),
        *("--port", str(port)),
        *("--conductor-url", conductor_url),
        *("--model", str(model)),
    )
    return Program(
        name="trainer",
        command=command,
        environment=dict(environment) | devices.environment,
        log=workdir / "logs" / f"{cell}-trainer.log",
        health_url=f"http://127.0.0.1:{port}/healthz",
        cores=devices.cores,
    )

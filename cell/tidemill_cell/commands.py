"""How the children of a cell are started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemill.api.rljob import RLJob
from tidemill_cell.address import LOOPBACK, Address
from tidemill_cell.children import Program
from tidemill_cell.devices import Devices

PYTHON = (sys.executable, "-m")


@dataclass(frozen=True, slots=True)
class Span:
    """Which part of an engine of several nodes this is."""

    rank: int = 0
    ranks: int = 1
    leader: str = LOOPBACK  # address of rank 0


def engine(
    job: RLJob,
    cell: str,
    port: int,
    model: Path,
    workdir: Path,
    devices: Devices,
    environment: Mapping[str, str],
    span: Span | None = None,
) -> Program:
    spec = job.spec
    command = (
        *(*PYTHON, "tidemill_rollout.engine"),
        *("--model", str(model)),
        *("--port", str(port)),
        *("--job", job.metadata.name, "--cell", cell),
        *("--max-length", str(spec.model.max_length)),
        *("--dtype", spec.model.dtype),
        *("--max-executions", str(spec.cells.capacity)),
        *_parallel(spec.cells.parallelism.rollout.tensor, span or Span()),
    )
    return Program(
        name="engine",
        command=command,
        environment=dict(environment) | devices.environment,
        log=workdir / "logs" / f"{cell}-engine.log",
        health_url=f"http://{LOOPBACK}:{port}/control/v1/healthy",
        cores=devices.cores,
    )


def _parallel(tensor: int, span: Span) -> tuple[str, ...]:
    """Nothing for an engine on one device."""
    over_nodes = ("--rank", str(span.rank), "--ranks", str(span.ranks), "--leader", span.leader) if span.ranks > 1 else ()
    return (*(("--tensor", str(tensor)) if tensor > 1 else ()), *over_nodes)


def trainer(
    cell: str,
    address: Address,
    manifest: Path,
    conductor_url: str,
    model: Path,
    workdir: Path,
    devices: Devices,
    environment: Mapping[str, str],
) -> Program:
    command = (
        *(*PYTHON, "tidemill_trainer"),
        *("--manifest", str(manifest)),
        *("--workdir", str(workdir)),
        *("--cell", cell),
        *("--port", str(address.port)),
        *("--conductor-url", conductor_url),
        *("--model", str(model)),
        *(("--host", address.host, "--advertise", address.reached_as) if address.host != LOOPBACK else ()),
    )
    return Program(
        name="trainer",
        command=command,
        environment=dict(environment) | devices.environment,
        log=workdir / "logs" / f"{cell}-trainer.log",
        health_url=f"{address.local_url}/healthz",
        cores=devices.cores,
    )

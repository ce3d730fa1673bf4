"""Who outside of a job is told of it, beside Prometheus: training curves and traces, as the job and the environment ask for."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.api import RLJob
from tidemill_rollout.curves import outlets as curves
from tidemill_rollout.follow import Outlet
from tidemill_rollout.spans import outlet as spans

FOLDER = "outside"
"""Of the work folder: how far each outlet has come, and what this job is called there."""


def outlets(job: RLJob, workdir: Path, environment: Mapping[str, str]) -> tuple[Outlet[Any], ...]:
    name = job.metadata.name
    run = _run(name, workdir / FOLDER / "run")
    return (*curves.outlets(job, run, workdir / "tensorboard", environment), *spans.outlets(name, run, workdir, environment))


def _run(job: str, file: Path) -> str:
    """The same in every life of this job, and another for the next job of its name."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{job}-{secrets.token_hex(4)}\n")
    return file.read_text().strip()

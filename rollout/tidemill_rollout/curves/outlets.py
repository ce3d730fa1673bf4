"""Which curves a job draws, and how each is opened."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tidemill.api import RLJob
from tidemill_rollout.curves.points import Drawing, Point
from tidemill_rollout.curves.services import services
from tidemill_rollout.curves.tensorboard import TensorBoard
from tidemill_rollout.follow import Outlet


def outlets(job: RLJob, run: str, folder: Path, environment: Mapping[str, str]) -> tuple[Outlet[Point], ...]:
    """`folder` lasts as long as the job does; `run` is the same in every life of the job, and in no other job."""
    openings = services(job.metadata.name, run, folder, environment)
    if job.spec.logging.tensorboard:
        openings["tensorboard"] = partial(TensorBoard, folder)
    return tuple(Outlet(name, Drawing().after, opening) for name, opening in openings.items())

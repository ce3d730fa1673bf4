"""The work folder of a local job: one job, one runner at a time."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import yaml

from tidemill.api import RLJob, load_rljob


class FolderRefused(Exception):
    """The folder cannot be used for this run. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A folder that this process holds until it ends (an flock: it goes with the process, whatever kills it)."""

    path: Path
    lock: int  # file descriptor

    @property
    def manifest(self) -> Path:
        return self.path / "job.yaml"

    @property
    def events(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def occupied(self) -> bool:
        """Whether a job has begun here. One that was refused (no memory, no model) has left a manifest and nothing else."""
        return (self.path / "conductor.db").exists()

    @property
    def logs(self) -> Path:
        return self.path / "logs"


def claim(path: Path, job: RLJob, resume: bool) -> WorkFolder:
    """Take the folder for `job`, making it if need be, and write its manifest.

    Raises:
        FolderRefused: another runner holds it; it has a job and `resume` is false; it has none, or another job, and `resume` is true.
    """
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise FolderRefused(f"{path} is not a folder; give another --workdir")
    path.mkdir(parents=True, exist_ok=True)
    lock = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        os.close(lock)
        raise FolderRefused(f"{path} is in use by another tidemill run; wait for it, stop it, or give another --workdir") from cause
    folder = WorkFolder(path, lock)
    try:
        _check(folder, job, resume)
    except FolderRefused:
        os.close(lock)
        raise
    folder.logs.mkdir(exist_ok=True)
    folder.manifest.write_text(yaml.safe_dump(job.model_dump(by_alias=True, mode="json", exclude={"status"}), sort_keys=False))
    return folder


def _check(folder: WorkFolder, job: RLJob, resume: bool) -> None:
    if folder.occupied and not resume:
        raise FolderRefused(f"{folder.path} already holds a job; continue it with --resume, or give another --workdir")
    if resume and not folder.occupied:
        raise FolderRefused(f"{folder.path} holds no job to resume; leave --resume out to start one")
    if resume and (there := load_rljob(folder.manifest)) != job:
        raise FolderRefused(
            f"{folder.path} holds job {there.metadata.name} with another manifest{_difference(there, job)}; "
            f"resume it with its own file, {folder.manifest}"
        )


def _difference(there: RLJob, here: RLJob) -> str:
    for name in type(there.spec).model_fields:
        if getattr(there.spec, name) != getattr(here.spec, name):
            return f" (spec.{name} differs)"
    return ""

"""The work folder of a local job: one job, one runner at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
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
    fresh: bool = False  # made by this process, or found empty

    @property
    def manifest(self) -> Path:
        return self.path / "job.yaml"

    @property
    def events(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def occupied(self) -> bool:
        """Whether a job has begun here. One that was stopped while it started has left a manifest and logs."""
        return (self.path / "conductor.db").exists()

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def release(self) -> None:
        """Let another runner have it."""
        os.close(self.lock)

    def abandon(self) -> None:
        """The job was refused: leave nothing behind where nothing was."""
        if self.fresh and not self.occupied:
            shutil.rmtree(self.path, ignore_errors=True)


SOCKET_BYTES = 107
"""Longest path of a Unix socket (sun_path, without its closing NUL)."""

_SOCKET_OF_UNSAFE = Path("executions", ".jail", "run", "gateway.sock")  # without a jail there is no shorter way to the door that jails see


def claim(path: Path, job: RLJob, resume: bool, unsafe_sandbox: bool = False) -> WorkFolder:
    """Take the folder for `job`, making it if need be, and write its manifest.

    Raises:
        FolderRefused: another runner holds it; it has a job and `resume` is false; it has none, or another job, and `resume` is true; it cannot
            be written; its path is too long for a socket.
    """
    try:
        path = path.resolve()
        if path.exists() and not path.is_dir():
            raise FolderRefused(f"{path} is not a folder; give another --workdir")
        _check_length(path, unsafe_sandbox)
        return _claim(path, job, resume)
    except (OSError, RuntimeError) as cause:  # the second: links that lead to each other, in Python 3.12
        reason = cause.strerror if isinstance(cause, OSError) else str(cause)
        raise FolderRefused(f"{path} cannot be used as a work folder: {reason}; give another --workdir") from cause


def _check_length(path: Path, unsafe_sandbox: bool) -> None:
    longest = path / (_SOCKET_OF_UNSAFE if unsafe_sandbox else "gateway.sock")
    too_long = len(os.fsencode(longest)) - SOCKET_BYTES
    if too_long > 0:
        raise FolderRefused(f"{path}: its path is {too_long} bytes too long, because {longest} is a socket; give a --workdir with a shorter path")


def _claim(path: Path, job: RLJob, resume: bool) -> WorkFolder:
    fresh = not path.exists() or not any(path.iterdir())
    path.mkdir(parents=True, exist_ok=True)
    lock = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        os.close(lock)
        raise FolderRefused(f"{path} is in use by another tidemill run; wait for it, stop it, or give another --workdir") from cause
    folder = WorkFolder(path, lock, fresh)
    try:
        _check(folder, job, resume)
        folder.logs.mkdir(exist_ok=True)
        folder.manifest.write_text(yaml.safe_dump(job.model_dump(by_alias=True, mode="json", exclude={"status"}), sort_keys=False))
    except BaseException:
        folder.abandon()
        os.close(lock)
        raise
    return folder


def _check(folder: WorkFolder, job: RLJob, resume: bool) -> None:
    if folder.occupied and not resume:
        raise FolderRefused(f"{folder.path} already holds a job; continue it with --resume, or give another --workdir")
    if resume and not folder.manifest.exists():  # with one, the job was stopped before it had begun: it begins now
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

"""Trajectories on disk: `trajectories/<execution>.msgpack`, one file an execution."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tidemill.trajectory.records import FORMAT_VERSION, Trajectory


class UnknownFormat(Exception):
    """The file was written by a newer version."""


def write_trajectory(folder: Path, trajectory: Trajectory) -> Path:
    """Write or replace the execution's file; a reader sees the old one or the new one, never half of it."""
    path = folder / f"{trajectory.execution}.msgpack"
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(msgspec.msgpack.encode(trajectory))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return path


def read_trajectory(path: Path) -> Trajectory:
    """A file of this format or an older one, told as one of this.

    Raises:
        UnknownFormat: a newer version wrote it.
        msgspec.MsgspecError: it is no trajectory.
    """
    try:
        trajectory = msgspec.msgpack.decode(path.read_bytes(), type=Trajectory)
    except RecursionError as cause:
        raise msgspec.DecodeError("it is nested too deep") from cause
    if trajectory.format > FORMAT_VERSION:
        raise UnknownFormat(f"{path}: format {trajectory.format}, this version reads up to {FORMAT_VERSION}; use the version that wrote it")
    return msgspec.structs.replace(trajectory, format=FORMAT_VERSION)

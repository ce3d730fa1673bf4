"""Whether a job's spans are wanted, and what they are made from."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from tidemill.telemetry.logs import Log
from tidemill.trajectory.files import UnknownFormat, read_trajectory
from tidemill.trajectory.records import Turn
from tidemill_rollout.follow import Outlet
from tidemill_rollout.spans.collector import Collector
from tidemill_rollout.spans.spans import Recall, Span

SETTINGS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_log = Log(__name__)


def outlets(job: str, run: str, workdir: Path, environment: Mapping[str, str]) -> tuple[Outlet[Span], ...]:
    """One when a collector is named and the extra `traces` is installed, else none."""
    if not any(environment.get(setting) for setting in SETTINGS):
        return ()
    if importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        _log.warning("no traces: the package is not installed", remedy="pip install 'tidemill[traces]'", because_of=SETTINGS[0])
        return ()
    recall = Recall(partial(_turns_of, workdir / "trajectories"), partial(_trained_by, workdir / "conductor.db"))
    return (Outlet("traces", recall.after, lambda: Collector(job, run)),)


def _turns_of(folder: Path, execution: str) -> Iterable[Turn]:
    """Nothing of an execution that was dropped before its turns came."""
    try:
        return read_trajectory(folder / f"{execution}.msgpack").turns
    except (OSError, UnknownFormat, msgspec.MsgspecError):
        return ()


def _trained_by(store: Path, step: int) -> Iterable[str]:
    """Events count a step when it is done, the store from 0."""
    asked = "SELECT e.id FROM executions e JOIN groups g ON e.group_id = g.id WHERE g.step = ? AND e.state = 'Scored' ORDER BY e.rowid"
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            return tuple(name for (name,) in db.execute(asked, (step - 1,)))
    except sqlite3.Error:
        return ()

"""`tidemill logs [JOB] --execution X`: one execution through the logs of all processes, merged by time."""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from tidemill.cli.on_cluster import EXIT_REFUSED, add_job, add_place, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.finding import find_job
from tidemill.cluster.trail import logs_of
from tidemill.telemetry.logs import stamp
from tidemill.telemetry.trail import Line, about, lines, merged, told, turn_lines
from tidemill.trajectory.files import UnknownFormat, read_trajectory
from tidemill.trajectory.records import Turn


def add_to(commands: Any) -> None:
    parser = commands.add_parser("logs", help="print the logs of all processes of a job, or what they say of one execution, merged by time")
    add_job(parser)
    parser.add_argument("--execution", metavar="NAME", default="", help="only what is about this execution, for instance g12-3")
    parser.add_argument("--json", action="store_true", help="the lines as they were written")
    parser.add_argument(
        "--workdir", type=Path, metavar="DIR", help="instead of a job on a cluster: the work folder of `tidemill run`; turns are told too"
    )
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.workdir is not None:
        return _print_folder(arguments)

    async def show(cluster: Cluster) -> int:
        job = await find_job(cluster, arguments.job)
        logs, missing = await logs_of(cluster, job.name)
        for why in missing:
            print(why, file=sys.stderr)
        return _print(logs, frozenset(), arguments)

    return on_cluster(arguments, show)


def _print_folder(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.workdir
    files = sorted((folder / "logs").glob("*.log"))
    if not files:
        print(f"{folder}: there are no logs; give the work folder of a job, e.g. runs/quickstart", file=sys.stderr)
        return EXIT_REFUSED
    turns = _turns_of(folder, arguments.execution) if arguments.execution else ()
    logs = [_read(file) for file in files]
    return _print([*logs, list(turn_lines(turns, stamp))], frozenset(turn.id for turn in turns), arguments)


def _print(logs: Sequence[Sequence[Line]], turns: frozenset[str], arguments: argparse.Namespace) -> int:
    wanted: str = arguments.execution
    found = 0
    for line in merged(*logs):
        if not wanted or about(line, wanted, turns):
            found += 1
            print(json.dumps(line.fields) if arguments.json else told(line, ("job", "execution") if wanted else ("job",)))
    if not found:
        print(
            f"no line is about {wanted}; `tidemill logs` without --execution prints all of them" if wanted else "there are no lines", file=sys.stderr
        )
        return EXIT_REFUSED
    return 0


def _read(file: Path) -> list[Line]:
    with file.open(errors="replace") as text:
        return list(lines(text))


def _turns_of(folder: Path, execution: str) -> tuple[Turn, ...]:
    """From its trajectory, or from the conductor's store while it lives."""
    try:
        return read_trajectory(folder / "trajectories" / f"{execution}.msgpack").turns
    except (OSError, UnknownFormat, msgspec.MsgspecError):
        return tuple(_live_turns(folder / "conductor.db", execution))


def _live_turns(store: Path, execution: str) -> Iterator[Turn]:
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            for (record,) in db.execute("SELECT record FROM turns WHERE execution = ?", (execution,)):
                yield msgspec.msgpack.decode(record, type=Turn)
    except (sqlite3.Error, msgspec.MsgspecError):
        return

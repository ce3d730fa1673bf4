"""`tidemill top [JOB]`: the live view of `tidemill run`, of a job on a cluster, or of a work folder on this machine."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from tidemill.cli.on_cluster import EXIT_REFUSED, EXIT_STOPPED, add_job, add_place, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.finding import find_job
from tidemill.cluster.following import Seen, follow
from tidemill.cluster.picture import view_of
from tidemill.report.live import Screen, open_screen
from tidemill.report.reading import Reading
from tidemill.telemetry.events import AnyEvent

EXIT_FAILED = 1
POLL_SECONDS = 0.5


def add_to(commands: Any) -> None:
    parser = commands.add_parser("top", help="watch a job until it ends: on a cluster, or with --workdir on this machine")
    add_job(parser)
    parser.add_argument("--workdir", type=Path, metavar="DIR", help="instead of a job on a cluster: the work folder of `tidemill run`")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.workdir is not None:
        return watch_folder(arguments.workdir)

    async def watch(cluster: Cluster) -> int:
        job = await find_job(cluster, arguments.job)
        screen = open_screen()
        try:
            last = await follow(cluster, job.name, Showing(screen).show)
            screen.say(parting_words(job.name, last))
        finally:
            screen.close()
        return EXIT_FAILED if last is not None and last.job.status.phase.value == "Failed" else 0

    return on_cluster(arguments, watch)


def watch_folder(folder: Path) -> int:
    """From the events that a job on this machine writes, until it says that it has ended."""
    file = folder / "metrics.jsonl"
    if not file.exists():
        print(f"{folder} holds no job: there is no {file.name} in it", file=sys.stderr)
        return EXIT_REFUSED
    decoder, reading, offset = msgspec.json.Decoder(AnyEvent), Reading(), 0
    screen = open_screen()
    try:
        while reading.ended is None:
            with file.open("rb") as lines:
                lines.seek(offset)
                told = lines.read()
            whole = told[: told.rfind(b"\n") + 1]
            offset += len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(msgspec.MsgspecError):  # `tidemill report` says which lines are broken
                    reading.take(decoder.decode(line))
            if (view := reading.view()) is not None:
                screen.show(view)
            if reading.ended is None:
                time.sleep(POLL_SECONDS)
        screen.say(f"{reading.ended.phase}{f': {reading.ended.reason}' if reading.ended.reason else ''}")
    except KeyboardInterrupt:
        return EXIT_STOPPED
    finally:
        screen.close()
    return EXIT_FAILED if reading.ended.phase == "Failed" else 0


class Showing:
    """Shows every reading, and says once when the cluster falls silent and when it is back."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._silent = False

    def show(self, seen: Seen) -> bool:
        """Whether that was the last."""
        if bool(seen.trouble) != self._silent:
            self._silent = bool(seen.trouble)
            self._screen.say(f"{seen.trouble}; what is shown is from before" if self._silent else "the cluster answers again")
        self._screen.show(view_of(seen.job, seen.cells))
        return seen.job.ended


def parting_words(name: str, last: Seen | None) -> str:
    if last is None:
        return f"rljob {name} was deleted"
    why = next((c.message for c in last.job.status.conditions if c.type == "Finished"), "")
    return f"rljob {name}: {last.job.status.phase.value}" + (f": {why}" if why else "")

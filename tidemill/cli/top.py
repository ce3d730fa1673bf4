"""`tidemill top [JOB]`: the live view of `tidemill run`, of a job on a cluster, or of a work folder on this machine."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from tidemill.cli.on_cluster import EXIT_REFUSED, EXIT_STOPPED, add_job, add_place, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.finding import find_job
from tidemill.cluster.following import Seen, follow
from tidemill.cluster.picture import view_of
from tidemill.local.scraped import Scraper
from tidemill.report.detail import Detail
from tidemill.report.live import WIDTH, Screen, View, body, open_screen, panel, title
from tidemill.report.reading import Reading
from tidemill.report.recent import Recent, Sighting, Sightings
from tidemill.telemetry.events import AnyEvent, JobEnded

EXIT_FAILED = 1
POLL_SECONDS = 1.0
EVENTS = "metrics.jsonl"


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
    """Of a job on this machine, until it says that it has ended; where nobody watches, how it stands now."""
    if not (folder / EVENTS).exists():
        print(f"{folder} holds no job: there is no {EVENTS} in it", file=sys.stderr)
        return EXIT_REFUSED
    watched = Watched(folder)
    if not sys.stderr.isatty():
        if (view := watched.look()) is not None:
            Console(width=WIDTH).print(panel(title(view), *body(view)))
    elif not _live(watched):
        return EXIT_STOPPED
    return EXIT_FAILED if watched.ended is not None and watched.ended.phase == "Failed" else 0


def _live(watched: Watched) -> bool:
    """Until the job has ended. False: somebody does not want to watch any more."""
    screen = open_screen()
    try:
        while True:
            if (view := watched.look()) is not None:
                screen.show(view)
            if watched.ended is not None:
                screen.say(f"{watched.ended.phase}{f': {watched.ended.reason}' if watched.ended.reason else ''}")
                return True
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return False
    finally:
        screen.close()


class Watched:
    """A work folder: the events of its job, and what its processes say of themselves."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / EVENTS
        self._offset = 0
        self._decoder = msgspec.json.Decoder(AnyEvent)
        self._reading, self._recent = Reading(), Recent()
        self._scraper = Scraper(folder, time.monotonic)

    @property
    def ended(self) -> JobEnded | None:
        return self._reading.ended

    def look(self) -> View | None:
        """None before the job has started."""
        with self._file.open("rb") as lines:
            lines.seek(self._offset)
            told = lines.read()
        whole = told[: told.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(msgspec.MsgspecError):  # `tidemill report` says which lines are broken
                event = self._decoder.decode(line)
                self._reading.take(event)
                self._recent.take(event)
        view = self._reading.view()
        if view is None:
            return None
        measured = None if self.ended else self._scraper.measure()
        roles = measured.roles if measured else {}
        cells = tuple(replace(cell, word=roles.get(cell.name, cell.word)) for cell in view.cells)
        return replace(view, cells=cells, detail=Detail(self._recent.strips(time.time()), measured))


class Showing:
    """Shows every reading, and says once when the cluster falls silent and when it is back."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._silent = False
        self._sightings = Sightings()

    def show(self, seen: Seen) -> bool:
        """Whether that was the last."""
        if bool(seen.trouble) != self._silent:
            self._silent = bool(seen.trouble)
            self._screen.say(f"{seen.trouble}; what is shown is from before" if self._silent else "the cluster answers again")
        view = view_of(seen.job, seen.cells)
        words = {cell.name: cell.word for cell in view.cells}
        self._sightings.take(Sighting(time.monotonic(), words, view.waterlevel, view.capacity, view.score))
        self._screen.show(replace(view, detail=Detail(self._sightings.strips(seen.job.status.flips))))
        return seen.job.ended


def parting_words(name: str, last: Seen | None) -> str:
    if last is None:
        return f"rljob {name} was deleted"
    why = next((c.message for c in last.job.status.conditions if c.type == "Finished"), "")
    return f"rljob {name}: {last.job.status.phase.value}" + (f": {why}" if why else "")

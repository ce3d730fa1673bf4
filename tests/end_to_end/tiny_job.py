"""The tiny job, run once for all tests of this folder, with a Prometheus beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.end_to_end.probe import Probed, cross_flips
from tests.end_to_end.running import TINY, TOKEN, Job, conductor, start_job, stop, summary, trajectories, url_of, wait_for, wait_for_end
from tests.scraping import Prometheus, of_local_job, prometheus
from tidemill.api import RLJob, load_rljob
from tidemill.local.summary import Summary
from tidemill.telemetry.events import AnyEvent, read_events
from tidemill.trajectory.records import Trajectory, Turn
from tidemill.wire.conductor import ConductorClient, Tide
from tidemill.wire.http import WireError

JOB_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that has ended, and what was seen of it from outside while it ran."""

    job: Job
    manifest: RLJob
    code: int
    summary: Summary
    events: list[AnyEvent]
    trajectories: dict[str, Trajectory]
    tides: list[Tide]
    probed: Probed
    prometheus: Prometheus  # scraped it every second
    rules: list[dict[str, Any]]  # as they stood just after its end

    def of[E: AnyEvent](self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def turns(self) -> list[Turn]:
        return [turn for trajectory in self.trajectories.values() for turn in trajectory.turns]

    @property
    def moved(self) -> list[Turn]:
        """Answers that two cells sampled."""
        return [turn for turn in self.turns if len({piece.cell for piece in turn.pieces}) > 1]

    @property
    def first_scrape(self) -> float:
        return self.prometheus.scraped("tidemill_waterlevel")[0]

    @property
    def last_scrape(self) -> float:
        """While all of its processes lived."""
        return self.prometheus.scraped("tidemill_waterlevel")[1]

    def number(self, statement: str) -> int:
        return int(conductor(self.job, statement)[0][0])


@contextlib.contextmanager
def tiny_job(folder: Path) -> Iterator[Finished]:
    """Run it to its end. Prometheus goes on answering as long as the block."""
    with prometheus(folder / "prometheus", *of_local_job(folder / "tiny")) as watching:
        job = start_job(TINY, folder / "tiny", "--json")
        try:
            wait_for(job, "the first execution runs", lambda: conductor(job, "SELECT 1 FROM executions WHERE state = 'Running'"))
            tides, probed = asyncio.run(_accompany(job))
            code = wait_for_end(job, JOB_SECONDS)
        finally:
            stop(job)
        events = list(read_events(job.folder / "metrics.jsonl"))
        yield Finished(job, load_rljob(TINY), code, summary(job), events, trajectories(job), tides, probed, watching, watching.rules())


async def _accompany(job: Job) -> tuple[list[Tide], Probed]:
    """Read the tide all the time and talk to the model, until the job has ended."""
    tides: list[Tide] = []
    async with aiohttp.ClientSession() as session, asyncio.timeout(JOB_SECONDS):
        watching = asyncio.create_task(_watch(ConductorClient(url_of(job, "tidemill_rollout.conductor"), TOKEN, session), tides))
        try:
            probed = await cross_flips(job, session)
            while job.process.poll() is None:
                await asyncio.sleep(0.1)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
    return tides, probed


async def _watch(client: ConductorClient, tides: list[Tide]) -> None:
    while True:
        try:
            tides.append(await client.tide(tides[-1].sequence if tides else -1, wait_seconds=2.0))
        except WireError:
            await asyncio.sleep(0.1)

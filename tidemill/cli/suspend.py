"""`tidemill suspend [JOB]`: free all pods of a job on a cluster, and keep its state; `tidemill resume [JOB]`: let it go on."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidemill.cli.on_cluster import EXIT_LATE, add_job, add_place, add_wait, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.changes import is_running, is_suspended, suspend
from tidemill.cluster.finding import find_job
from tidemill.cluster.following import Seen, wait_for
from tidemill.cluster.objects import Job


@dataclass(frozen=True, slots=True)
class JobVerb:
    name: str
    help: str
    suspends: bool
    done: Callable[[Seen], bool]
    waits_for: str
    late: str  # what the job is not in time
    said: Callable[[Job], str]

    def add_to(self, commands: Any) -> None:
        parser = commands.add_parser(self.name, help=self.help)
        add_job(parser)
        add_wait(parser, self.waits_for)
        add_place(parser)
        parser.set_defaults(run=self._run)

    def _run(self, arguments: argparse.Namespace) -> int:
        async def act(cluster: Cluster) -> int:
            job = await find_job(cluster, arguments.job)
            await suspend(cluster, job, self.suspends)
            print(f"{job.name}: {self.said(job)}")
            if arguments.wait and not await wait_for(cluster, job.name, self.done, arguments.wait):
                print(f"{job.name}: not {self.late} after {arguments.wait:g} s; see tidemill status {job.name}")
                return EXIT_LATE
            return 0

        return on_cluster(arguments, act)


SUSPEND = JobVerb(
    "suspend",
    "free the pods of a job on a cluster, keep its state",
    True,
    is_suspended,
    "all pods are gone",
    "suspended",
    lambda job: f"suspending; tidemill resume {job.name} goes on at the same step",
)
RESUME = JobVerb(
    "resume",
    "let a suspended job on a cluster go on",
    False,
    is_running,
    "the job runs",
    "running",
    lambda job: f"goes on at step {job.status.step}",
)

"""`tidemill resume [JOB]`: let a suspended job on a cluster go on."""

from __future__ import annotations

import argparse
from typing import Any

from tidemill.cli.on_cluster import EXIT_LATE, add_job, add_place, add_wait, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.changes import is_running, suspend
from tidemill.cluster.finding import find_job
from tidemill.cluster.following import wait_for


def add_to(commands: Any) -> None:
    parser = commands.add_parser("resume", help="let a suspended job on a cluster go on")
    add_job(parser)
    add_wait(parser, "the job runs")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    async def go_on(cluster: Cluster) -> int:
        job = await find_job(cluster, arguments.job)
        await suspend(cluster, job, False)
        print(f"{job.name}: goes on at step {job.status.step}")
        if arguments.wait and not await wait_for(cluster, job.name, is_running, arguments.wait):
            print(f"{job.name}: not running after {arguments.wait:g} s; see tidemill status {job.name}")
            return EXIT_LATE
        return 0

    return on_cluster(arguments, go_on)

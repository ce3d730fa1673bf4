"""`tidemill suspend [JOB]`: free all pods of a job on a cluster, and keep its state."""

from __future__ import annotations

import argparse
from typing import Any

from tidemill.cli.on_cluster import EXIT_LATE, add_job, add_place, add_wait, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.changes import is_suspended, suspend
from tidemill.cluster.finding import find_job
from tidemill.cluster.following import wait_for


def add_to(commands: Any) -> None:
    parser = commands.add_parser("suspend", help="free the pods of a job on a cluster, keep its state")
    add_job(parser)
    add_wait(parser, "all pods are gone")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    async def hold(cluster: Cluster) -> int:
        job = await find_job(cluster, arguments.job)
        await suspend(cluster, job, True)
        print(f"{job.name}: suspending; tidemill resume {job.name} goes on at the same step")
        if arguments.wait and not await wait_for(cluster, job.name, is_suspended, arguments.wait):
            print(f"{job.name}: not suspended after {arguments.wait:g} s; see tidemill status {job.name}")
            return EXIT_LATE
        return 0

    return on_cluster(arguments, hold)

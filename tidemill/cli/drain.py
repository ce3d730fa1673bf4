"""`tidemill drain [JOB] CELL`: take a cell out of its job, for instance before its node is repaired; `--undo` takes it in again."""

from __future__ import annotations

import argparse
from typing import Any

from tidemill.cli.on_cluster import EXIT_LATE, add_place, add_wait, job_and_cell, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.changes import cordon, is_back, is_drained
from tidemill.cluster.finding import find_cell, find_job
from tidemill.cluster.following import wait_for


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "drain",
        help="take a cell of a job on a cluster out, or in again",
        usage="tidemill drain [-h] [JOB] CELL [--undo] [--wait [SECONDS]] [-n NAME] [--context NAME] [--kubeconfig FILE]",
    )
    parser.add_argument("words", nargs="+", metavar="[JOB] CELL", help="the cell as cell-1 or JOB-cell-1")
    parser.add_argument("--undo", action="store_true", help="take the cell in again")
    add_wait(parser, "the cell has come back from training and is counted out")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    async def drain(cluster: Cluster) -> int:
        named, cell_name = job_and_cell(arguments.words)
        job = await find_job(cluster, named)
        cell = await find_cell(cluster, job, cell_name)
        await cordon(cluster, job, cell, not arguments.undo)
        print(f"{cell.object_name}: {'takes part again' if arguments.undo else 'drains'}")
        so = is_back if arguments.undo else is_drained
        if arguments.wait and not await wait_for(cluster, job.name, lambda seen: so(seen, cell.name), arguments.wait):
            print(f"{cell.object_name}: not {'back' if arguments.undo else 'drained'} after {arguments.wait:g} s; see tidemill status {job.name}")
            return EXIT_LATE
        if arguments.wait and not arguments.undo:
            print(f"{cell.object_name}: drained")
        return 0

    return on_cluster(arguments, drain)

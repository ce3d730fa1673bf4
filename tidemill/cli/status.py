"""`tidemill status [JOB]`: a job on a cluster on one screen: where it stands, what limits it, what is wrong and what to do."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from rich.console import Console

from tidemill.cli.on_cluster import add_job, add_place, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.finding import cells_of, find_job
from tidemill.cluster.picture import as_document
from tidemill.cluster.sheet import sheet

WIDE = 160
"""Of a pipe or a file, which has no width."""


def add_to(commands: Any) -> None:
    parser = commands.add_parser("status", help="a job on a cluster: phase, cells, what is wrong and what to do")
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="print it for programs")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    async def show(cluster: Cluster) -> int:
        job = await find_job(cluster, arguments.job)
        cells = await cells_of(cluster, job.name)
        if arguments.json:
            print(json.dumps(as_document(job, cells), indent=1))
            return 0
        out = Console()
        console = out if out.is_terminal else Console(width=WIDE)
        console.print(sheet(job, cells, time.time()))
        return 0

    return on_cluster(arguments, show)

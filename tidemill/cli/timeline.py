"""`tidemill timeline JOB`: the report of a job on a cluster, the same that `tidemill run` writes."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from tidemill.cli.on_cluster import EXIT_REFUSED, add_job, add_place, on_cluster
from tidemill.cluster.api import Cluster
from tidemill.cluster.finding import find_job
from tidemill.cluster.history import history_of


def add_to(commands: Any) -> None:
    parser = commands.add_parser("timeline", help="write report.html and timeline.png of a job on a cluster, also after it has ended")
    add_job(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: JOB-report)")
    add_place(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    async def write(cluster: Cluster) -> int:
        job = await find_job(cluster, arguments.job)
        history = await history_of(cluster, job)
        if not history.events:
            print(f"rljob {job.name}: nothing has happened yet; it is {job.status.phase.value}", file=sys.stderr)
            return EXIT_REFUSED
        from tidemill.report.page import write_report  # matplotlib takes half a second that only this needs

        folder = arguments.out or Path(f"{job.name}-report")
        folder.mkdir(parents=True, exist_ok=True)
        write_report(history.events, time.time(), folder)
        print(f"{len(history.events)} events from {history.origin}", file=sys.stderr)
        if not history.whole:
            print("the oldest events did not fit there: the report begins in the middle of the job", file=sys.stderr)
        print(folder / "report.html")
        return 0

    return on_cluster(arguments, write)

"""`tidemill report WORKDIR`: write the report of a local job anew, also while it runs."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from tidemill.report.page import write_report
from tidemill.telemetry.events import read_events


def add_to(commands: Any) -> None:
    parser = commands.add_parser("report", help="write report.html and timeline.png of a work folder")
    parser.add_argument("workdir", type=Path, metavar="WORKDIR")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    events = arguments.workdir / "metrics.jsonl"
    if not events.exists():
        print(f"{arguments.workdir} holds no job: there is no {events.name} in it", file=sys.stderr)
        return 2
    write_report(list(read_events(events)), time.time(), arguments.workdir)
    print(arguments.workdir / "report.html")
    return 0

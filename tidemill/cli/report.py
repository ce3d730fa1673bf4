"""`tidemill report WORKDIR`: write the report of a local job anew, also while it runs."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from tidemill.report.page import write_report
from tidemill.telemetry.events import JobStarted, readable_events

EXIT_REFUSED = 2


def add_to(commands: Any) -> None:
    parser = commands.add_parser("report", help="write report.html and timeline.png of a work folder")
    parser.add_argument("workdir", type=Path, metavar="WORKDIR")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    file = arguments.workdir / "metrics.jsonl"
    try:
        events, broken = readable_events(file)
        for line in broken:
            print(line, file=sys.stderr)
        if not any(isinstance(event, JobStarted) for event in events):
            print(f"{arguments.workdir} holds no job that has started: {file.name} does not say so", file=sys.stderr)
            return EXIT_REFUSED
        write_report(events, time.time(), arguments.workdir)
    except FileNotFoundError:
        print(f"{arguments.workdir} holds no job: there is no {file.name} in it", file=sys.stderr)
        return EXIT_REFUSED
    except OSError as cause:
        print(f"no report of {arguments.workdir}: {cause}", file=sys.stderr)
        return EXIT_REFUSED
    print(arguments.workdir / "report.html")
    return 0

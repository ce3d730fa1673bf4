"""`tidemill run FILE`: a whole job on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from tidemill.api import InvalidManifest, RLJob, load_rljob, parse_rljob
from tidemill.local.job import Options, run_job
from tidemill.local.memory import NotEnoughMemory
from tidemill.local.model import ModelUnavailable
from tidemill.local.ports import PortTaken
from tidemill.local.processes import ProcessFailed
from tidemill.local.screen import open_screen
from tidemill.local.sources import with_absolute_sources
from tidemill.local.summary import Summary
from tidemill.local.supported import unsupported
from tidemill.local.workdir import FolderRefused, claim
from tidemill.policy.decide import Mode
from tidemill.telemetry import logs

EXIT_REFUSED = 2  # nothing was started
EXIT_FAILED = 1
EXIT_STOPPED = 130  # by a signal, as shells count


def add_to(commands: Any) -> None:
    parser = commands.add_parser("run", help="run a job on this machine")
    parser.add_argument("file", type=Path, metavar="FILE", help="an RLJob manifest, the same that a cluster takes")
    parser.add_argument("--workdir", type=Path, help="where everything is kept (default: runs/NAME)")
    parser.add_argument("--mode", choices=[m.value for m in Mode], help="instead of spec.schedule.mode")
    parser.add_argument("--resume", action="store_true", help="continue the job in the work folder")
    parser.add_argument("--json", action="store_true", help="print a summary as the last line of standard output")
    parser.add_argument("--ports", type=int, metavar="FIRST", help="use ports from FIRST upwards instead of free ones")
    parser.add_argument(
        "--unsafe-sandbox",
        action="store_true",
        help="run harnesses without a jail where the machine allows none: model-written commands can touch your files",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    logs.start("runner", level=30)
    try:
        job = _job(arguments)
        if refused := unsupported(job):
            raise InvalidManifest(f"rljob {job.metadata.name}", tuple(str(violation) for violation in refused))
        folder = claim(arguments.workdir or Path("runs") / job.metadata.name, job, arguments.resume)
    except (InvalidManifest, FolderRefused) as cause:
        print(cause, file=sys.stderr)
        return EXIT_REFUSED
    screen = open_screen()
    try:
        summary = run_job(job, folder, Options(arguments.resume, arguments.ports, arguments.unsafe_sandbox), screen)
    except (ModelUnavailable, NotEnoughMemory, PortTaken) as cause:
        screen.close()
        print(f"rljob {job.metadata.name}: {cause}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        screen.close()
        print(f"rljob {job.metadata.name}: stopped before it had begun", file=sys.stderr)
        return EXIT_STOPPED
    except ProcessFailed as cause:
        screen.close()
        print(f"rljob {job.metadata.name}: {cause}\nContinue with --resume once the cause is gone.", file=sys.stderr)
        return EXIT_FAILED
    screen.close()
    print(_for_people(summary), file=sys.stderr)
    if arguments.json:
        print(msgspec.json.encode(summary).decode(), flush=True)
    return {"Succeeded": 0, "Stopped": EXIT_STOPPED}.get(summary.phase, EXIT_FAILED)


def _job(arguments: argparse.Namespace) -> RLJob:
    job = with_absolute_sources(load_rljob(arguments.file), arguments.file.resolve().parent)
    if arguments.mode is None:
        return job
    document = job.model_dump(by_alias=True, mode="json", exclude={"status"})
    document["spec"]["schedule"]["mode"] = arguments.mode
    return parse_rljob(document)  # again, because a rule may not hold under the other mode


def _for_people(summary: Summary) -> str:
    scores = [s for s in summary.scores if s is not None]
    quarter = max(1, len(scores) // 4)
    trend = (
        f"score {sum(scores[:quarter]) / quarter:.2f} -> {sum(scores[-quarter:]) / quarter:.2f} (first and last quarter of steps)"
        if scores
        else "no score yet"
    )
    dropped = ", ".join(f"{count} {reason}" for reason, count in summary.executions.dropped.items()) or "none dropped"
    open_ones = "under way, they begin anew with --resume" if summary.phase == "Stopped" else "lost"
    held_out = ", ".join(f"version {v}: {s:.2f}" for v, s in summary.evaluation.items())
    return os.linesep.join(
        [
            f"{summary.phase} after {summary.wall_seconds / 60:.1f} min: {summary.steps} steps, {trend}",
            *([f"held-out tasks: {held_out}"] if held_out else []),
            f"{summary.executions.finished} executions finished, {dropped}, {summary.executions.lost} {open_ones}; "
            f"{len(summary.flips)} flips, {summary.resubmitted_calls} answers moved between engines while they were written",
        ]
    )

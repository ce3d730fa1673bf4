"""`tidemill run FILE`: a whole job on this machine."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from tidemill.api import InvalidManifest, RLJob, load_rljob, parse_rljob
from tidemill.local.cores import gpus_of
from tidemill.local.job import Options, run_job
from tidemill.local.memory import NotEnoughMemory
from tidemill.local.model import ModelUnavailable
from tidemill.local.ports import PortTaken
from tidemill.local.processes import ProcessRefused
from tidemill.local.programs import ProgramUnavailable
from tidemill.local.sources import base_of, source_rules, with_absolute_sources
from tidemill.local.summary import Summary, summarize
from tidemill.local.supported import unsupported
from tidemill.local.workdir import FolderRefused, WorkFolder, claim
from tidemill.policy.decide import Mode
from tidemill.report.live import clock, open_screen
from tidemill.telemetry import logs
from tidemill.telemetry.events import readable_events

EXIT_REFUSED = 2  # nothing has begun
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
    began = time.monotonic()
    try:
        job = _job(arguments)
        folder = claim(arguments.workdir or Path("runs") / job.metadata.name, job, arguments.resume, arguments.unsafe_sandbox)
    except (InvalidManifest, FolderRefused) as cause:
        print(cause, file=sys.stderr)
        return EXIT_REFUSED
    try:
        return _run(job, folder, Options(arguments.resume, arguments.ports, arguments.unsafe_sandbox), began, arguments.json)
    finally:
        folder.release()


def _run(job: RLJob, folder: WorkFolder, options: Options, began: float, as_json: bool) -> int:
    try:
        summary = _shown(job, folder, options)
    except (ProgramUnavailable, ModelUnavailable, NotEnoughMemory, PortTaken, ProcessRefused) as cause:
        folder.abandon()
        print(f"rljob {job.metadata.name}: {cause}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:  # while the model was prepared
        events = readable_events(folder.events)[0] if folder.events.exists() else []
        summary = summarize(events, None, events[-1].time if events else time.time())
    if summary.reason:
        print(f"rljob {job.metadata.name}: {summary.reason}", file=sys.stderr)
    print(for_people(summary, time.monotonic() - began), file=sys.stderr)
    if as_json:
        print(msgspec.json.encode(summary).decode(), flush=True)
    return {"Succeeded": 0, "Stopped": EXIT_STOPPED}.get(summary.phase, EXIT_FAILED)


def _shown(job: RLJob, folder: WorkFolder, options: Options) -> Summary:
    screen = open_screen()
    try:
        return run_job(job, folder, options, screen)
    finally:
        screen.close()


def _job(arguments: argparse.Namespace) -> RLJob:
    base = base_of(arguments.file)
    here = (*source_rules(base), lambda spec: unsupported(spec, gpus_of()))
    job = with_absolute_sources(load_rljob(arguments.file, here), base)
    if arguments.mode is None:
        return job
    document = job.model_dump(by_alias=True, mode="json", exclude={"status"})
    document["spec"]["schedule"]["mode"] = arguments.mode
    return parse_rljob(document)  # again, because a rule may not hold under the other mode


def for_people(summary: Summary, seconds: float) -> str:
    """`seconds`: what the live view's clock shows. The job itself runs for less, as its model is prepared before it starts."""
    scores = [s for s in summary.scores if s is not None]
    quarter = max(1, len(scores) // 4)
    trend = (
        f"score {sum(scores[:quarter]) / quarter:.2f} -> {sum(scores[-quarter:]) / quarter:.2f} (first and last quarter of steps)"
        if scores
        else "no score yet"
    )
    dropped = ", ".join(f"{count} {reason}" for reason, count in summary.executions.dropped.items()) or "none dropped"
    open_ones = "lost" if summary.phase == "Succeeded" else "under way, they begin anew with --resume"
    held_out = ", ".join(f"version {v}: {s:.2f}" for v, s in summary.evaluation.items())
    return os.linesep.join(
        [
            f"{summary.phase} after {clock(seconds)} (of the job {clock(summary.wall_seconds)} in all its runs): {summary.steps} steps, {trend}",
            *([f"held-out tasks: {held_out}"] if held_out else []),
            f"{summary.executions.finished} executions finished, {dropped}, {summary.executions.lost} {open_ones}; "
            f"{len(summary.flips)} flips, {summary.answers_moved} answers moved between engines while they were written",
            *({"Stopped": ["Go on with --resume."], "Failed": ["Go on with --resume once the cause is gone."]}.get(summary.phase, [])),
        ]
    )

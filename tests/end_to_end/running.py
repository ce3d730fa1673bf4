"""A real job for tests: `tidemill run` as a subprocess, what its stores say while it runs and afterwards, its processes, and its end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tidemill.local.parent import die_with_parent
from tidemill.local.processes import tail
from tidemill.local.summary import Summary
from tidemill.telemetry.events import AnyEvent, read_events
from tidemill.trajectory.files import read_trajectory
from tidemill.trajectory.records import Trajectory, Turn
from tidemill_rollout.gateway.turns import Kept

TINY = Path(__file__).parents[2] / "examples" / "tiny" / "rljob.yaml"
TOKEN = "token-of-a-job-under-test"
POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """One `tidemill run`. `folder` is its work folder; standard output and error go to files beside that."""

    folder: Path
    process: subprocess.Popen[bytes]
    output: Path
    errors: Path


def tiny_manifest(folder: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """The tiny job's manifest in `folder`, with e.g. {"schedule.steps": 2} changed (paths from `spec`)."""
    document = yaml.safe_load(TINY.read_text())
    spec = document["spec"]
    spec["tasks"]["source"] = f"path:{TINY.parent / 'tasks'}"
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        place = spec
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rljob.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def start_job(manifest: Path, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Job:
    """Start `tidemill run manifest --workdir folder`. It dies with the test process; stop it with `stop`."""
    output, errors = folder.with_suffix(".out"), folder.with_suffix(".err")
    command = [sys.executable, "-m", "tidemill.cli.main", "run", str(manifest), "--workdir", str(folder), *arguments]
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "TIDEMILL_TOKEN": TOKEN, **(environment or {})},
            start_new_session=True,  # a Ctrl-C at the tests is not one at the job
            preexec_fn=die_with_parent,
        )
    return Job(folder, process, output, errors)


def wait_for[T](job: Job, what: str, condition: Callable[[], T], seconds: float = 120.0) -> T:
    """Return the first true answer of `condition`; fail, with what the job last said, when the job ends or the time is over before there is one."""
    deadline = time.monotonic() + seconds
    while True:
        ended = job.process.poll()
        if answer := condition():
            return answer
        if ended is not None:
            raise AssertionError(f"the job ended with {ended} before {what}:\n{said(job)}")
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}:\n{said(job)}")
        time.sleep(POLL_SECONDS)


def wait_for_end(job: Job, seconds: float = 240.0) -> int:
    """The exit code."""
    try:
        return job.process.wait(seconds)
    except subprocess.TimeoutExpired as cause:
        raise AssertionError(f"the job did not end within {seconds:g} s:\n{said(job)}") from cause


def stop(job: Job, number: signal.Signals = signal.SIGINT, seconds: float = 15.0) -> float:
    """Send a signal to the runner alone, wait for its end, return how many seconds that took. Harmless when it has ended."""
    began = time.monotonic()
    if job.process.poll() is None:
        job.process.send_signal(number)
        try:
            job.process.wait(seconds)
        except subprocess.TimeoutExpired as cause:
            job.process.kill()
            job.process.wait()
            raise AssertionError(f"the runner did not end within {seconds:g} s of {number.name}:\n{said(job)}") from cause
    return time.monotonic() - began


def said(job: Job) -> str:
    """The last lines of the runner and of every process, for the message of a failing test."""
    files = [job.errors, *sorted((job.folder / "logs").glob("*.log"))]
    return "\n".join(f"--- {file.name}\n{tail(file, 8)}" for file in files)


def summary(job: Job) -> Summary:
    """The JSON object that a run with --json prints last."""
    return msgspec.json.decode(job.output.read_bytes().splitlines()[-1], type=Summary)


def query(database: Path, statement: str, *values: Any) -> list[sqlite3.Row]:
    """Rows of a store that a process is writing or has left; none while the store or the table is not there yet."""
    if not database.exists():
        return []
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
    connection.row_factory = sqlite3.Row
    try:
        return connection.execute(statement, values).fetchall()
    except sqlite3.OperationalError as cause:
        if "no such table" in str(cause):
            return []
        raise
    finally:
        connection.close()


def conductor(job: Job, statement: str, *values: Any) -> list[sqlite3.Row]:
    return query(job.folder / "conductor.db", statement, *values)


def gateway(job: Job, statement: str, *values: Any) -> list[sqlite3.Row]:
    return query(job.folder / "gateway-0.db", statement, *values)


def trajectories(job: Job) -> dict[str, Trajectory]:
    """What is kept of every execution that was evaluated, by its id."""
    return {t.execution: t for t in map(read_trajectory, sorted((job.folder / "trajectories").glob("*.msgpack")))}


def turns(job: Job) -> list[Turn]:
    """Finished turns that the conductor has, in the order they came; none of groups that are trained."""
    return [msgspec.msgpack.decode(row["record"], type=Turn) for row in conductor(job, "SELECT record FROM turns ORDER BY number")]


def kept_turns(job: Job) -> list[Kept]:
    """Finished turns in the gateway's journal: of executions that are still open."""
    return [msgspec.msgpack.decode(row["kept"], type=Kept) for row in gateway(job, "SELECT kept FROM turns ORDER BY number")]


def events(job: Job) -> list[AnyEvent]:
    file = job.folder / "metrics.jsonl"
    return list(read_events(file)) if file.exists() else []


def committed_steps(job: Job) -> int:
    rows = conductor(job, "SELECT committed_steps FROM job")
    return int(rows[0][0]) if rows else 0


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the machine; `started` tells two with the same pid apart."""

    pid: int
    parent: int
    started: int
    command: tuple[str, ...]

    def option(self, name: str) -> str:
        """The value of a command line option: `option("--port")`."""
        return self.command[self.command.index(name) + 1]


def descendants(job: Job) -> list[Process]:
    """Everything the runner has started, directly or not: also jails, harnesses, and the engines' core processes."""
    everything = list(_processes())
    known = {job.process.pid}
    found: list[Process] = []
    while fresh := [p for p in everything if p.parent in known and p.pid not in known]:
        known |= {p.pid for p in fresh}
        found += fresh
    return found


def process_of(job: Job, module: str, cell: str = "") -> Process | None:
    """The process that runs `module` (of `cell`), e.g. "tidemill_rollout.engine", "cell-1"."""
    for process in descendants(job):
        if module in process.command[:5] and (not cell or cell in process.command):
            return process
    return None


def url_of(job: Job, module: str, cell: str = "") -> str:
    process = process_of(job, module, cell)
    assert process is not None, f"no {module} {cell} is running:\n{said(job)}"
    return f"http://127.0.0.1:{process.option('--port')}"


def alive(processes: list[Process]) -> list[Process]:
    """Those of them that have not ended."""
    now = {(p.pid, p.started) for p in _processes()}
    return [p for p in processes if (p.pid, p.started) in now]


def naming(folder: Path) -> list[Process]:
    """Every process of the machine whose command line, environment or current folder names the work folder."""
    return [p for p in _processes() if p.pid != os.getpid() and _names(p.pid, str(folder))]


def _processes() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # "pid (name) state parent ..."; the name may contain anything, also ")"
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] not in "ZX":
                yield Process(int(entry.name), int(fields[1]), int(fields[19]), tuple(command))


def _names(pid: int, text: str) -> bool:
    place = Path("/proc") / str(pid)
    try:
        if any(text.encode() in (place / file).read_bytes() for file in ("cmdline", "environ")):
            return True
        return text in os.readlink(place / "cwd")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False

"""The processes of a local job: started with their parent's life, restarted when they die, stopped all together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.local.parent import die_with_parent
from tidemill.telemetry.logs import Log

log = Log(__name__)

RESTARTS_ALLOWED = 5
"""Restarts in a row; a process that lives `HEALTHY_SECONDS` starts counting anew."""

HEALTHY_SECONDS = 60.0
STOP_SECONDS = 6.0
"""Between the polite and the hard signal. Ctrl-C promises an end within 10 s."""

FIRST_STOP_SECONDS = 2.0
"""Of these, how long the others are spared for the first one's sake."""


class ProcessFailed(Exception):
    """A process died more often than it may. The message has its last log lines."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: a module of ours, with its arguments."""

    name: str  # "conductor", "gateway-0", "cell-1"
    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    log_file: Path


@dataclass(slots=True)
class Supervised:
    command: Command
    process: subprocess.Popen[bytes]
    started: float
    restarts: int = 0
    next_start: float = 0.0


@dataclass(slots=True)
class Processes:
    """All of them. Not thread-safe; the runner's loop calls `tend` often."""

    running: list[Supervised] = field(default_factory=list)

    def start(self, command: Command) -> None:
        self.running.append(Supervised(command, _spawn(command), time.monotonic()))

    def tend(self, now: float) -> None:
        """Restart what has died, with back-off.

        Raises:
            ProcessFailed: one died more than `RESTARTS_ALLOWED` times in a row.
        """
        for one in self.running:
            code = one.process.poll()
            if code is None:
                continue
            if one.next_start == 0.0:
                one.restarts = 0 if now - one.started > HEALTHY_SECONDS else one.restarts
                if one.restarts >= RESTARTS_ALLOWED:
                    raise ProcessFailed(
                        f"{one.command.name} ended with {_meaning(code)} {one.restarts + 1} times in a row; its last lines:\n"
                        f"{tail(one.command.log_file)}"
                    )
                one.next_start = now + min(5.0, 0.2 * 2**one.restarts)
                log.warning("process ended, will be restarted", name=one.command.name, code=code, restarts=one.restarts)
            if now >= one.next_start:
                one.process, one.started, one.next_start, one.restarts = _spawn(one.command), now, 0.0, one.restarts + 1

    def stop(self) -> None:
        """End all of them, politely, then not.

        The first one, the conductor, alone: it ends the harnesses, which otherwise fail for want of the gateway, and count as having failed.
        """
        deadline = time.monotonic() + STOP_SECONDS
        for one in self.running[:1]:
            _signal(one.process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(FIRST_STOP_SECONDS)
        for one in self.running[1:]:
            _signal(one.process, signal.SIGTERM)
        for one in self.running:
            try:
                one.process.wait(max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("process did not stop, killing it", name=one.command.name)
        for one in self.running:
            _signal(one.process, signal.SIGKILL)  # the whole group: also children that a clean exit left behind
            one.process.wait()


def tail(file: Path, lines: int = 15) -> str:
    """The last lines of a log, for people."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - 16_384))
            return "\n".join(opened.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return f"(no log at {file})"


def _spawn(command: Command) -> subprocess.Popen[bytes]:
    with command.log_file.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", command.module, *command.arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **command.environment},
            start_new_session=True,  # Ctrl-C reaches the runner alone, which then stops the rest in order
            preexec_fn=die_with_parent,
        )


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _meaning(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

"""The processes of a local job: started with their parent's life, restarted when they die, stopped all together."""

from __future__ import annotations

import contextlib
import json
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
CANNOT_START = 2
"""Exit code of a process of ours that is not to be started again: what it was told is wrong."""

STOP_SECONDS = 6.0
"""Between the polite and the hard signal. Ctrl-C promises an end of all processes within 10 s."""

FIRST_STOP_SECONDS = 2.0
"""Of these, how long the others are spared for the first one's sake."""


class ProcessFailed(Exception):
    """A process died more often than it may. The message has its last log lines."""


class ProcessRefused(ProcessFailed):
    """A process cannot start as it was told to: a wrong task, no jail. The message is its reason."""


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
    first_life: bool = True


@dataclass(slots=True)
class Processes:
    """All of them. Not thread-safe; the runner's loop calls `tend` often."""

    running: list[Supervised] = field(default_factory=list)
    _hard_at: float = 0.0  # when those that have been told to end are killed

    def start(self, command: Command) -> None:
        self.running.append(Supervised(command, _spawn(command), time.monotonic()))

    def tend(self, now: float) -> None:
        """Restart what has died, with back-off.

        Raises:
            ProcessRefused: one said at its first start that it cannot.
            ProcessFailed: one died more than `RESTARTS_ALLOWED` times in a row.
        """
        for one in self.running:
            code = one.process.poll()
            if code is None:
                continue
            if code == CANNOT_START and one.first_life and now - one.started <= HEALTHY_SECONDS:
                raise ProcessRefused(reason_in(one.command.log_file) or f"{one.command.name} cannot start:\n{tail(one.command.log_file)}")
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
                one.first_life = False

    def stop(self) -> None:
        """End all of them, politely, then not."""
        self.ask_to_stop()
        self.await_end()

    def ask_to_stop(self) -> None:
        """Ask them to end. The caller has `STOP_SECONDS` for something else, then `await_end` is due.

        The first one, the conductor, alone: it ends the harnesses, which otherwise fail for want of the gateway, and count as having failed.
        """
        self._hard_at = time.monotonic() + STOP_SECONDS
        for one in self.running[:1]:
            _signal(one.process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.process.wait(FIRST_STOP_SECONDS)
        for one in self.running[1:]:
            _signal(one.process, signal.SIGTERM)

    def await_end(self) -> None:
        """Wait for those that were asked, kill the rest. Afterwards there is no process."""
        for one in self.running:
            try:
                one.process.wait(max(0.05, self._hard_at - time.monotonic()))
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


def reason_in(file: Path) -> str:
    """What the last line of a log gives as its reason; empty when it gives none."""
    try:
        line = json.loads(tail(file, 1))
    except ValueError:
        return ""
    reason = line.get("reason", "") if isinstance(line, dict) else ""
    return reason if isinstance(reason, str) else ""


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

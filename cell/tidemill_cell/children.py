"""Supervision of one child process: started, watched over HTTP, restarted with growing pauses, given up after five times."""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import aiohttp

from tidemill.telemetry.logs import Log
from tidemill.wire.trust import Credential, credential
from tidemill_cell.process_group import ProcessGroup
from tidemill_cell.restarts import Failures, Patience

LAST_LINES = 20
_LAST_BYTES = 8192


class Health(StrEnum):
    STARTING = "starting"
    HEALTHY = "healthy"
    DOWN = "down"  # between two lives
    FAILED = "failed"  # given up


@dataclass(frozen=True, slots=True)
class Program:
    """What to start, and where it says that it is healthy."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    health_url: str
    cores: tuple[int, ...] = ()


class Child:
    """One program and the process that runs it now. `incarnation` names that process's life."""

    def __init__(self, program: Program, session: aiohttp.ClientSession, caller: Credential | str, patience: Patience | None = None) -> None:
        self.program = program
        self.health = Health.DOWN
        self.incarnation = ""
        self.pid = 0
        self.starts = 0
        self.reason = ""  # of the last failure, with the last lines of the log
        self.on_change: Callable[[], None] = lambda: None
        self._session = session
        self._credential = credential(caller)
        self._patience = patience or Patience()
        self._log = Log(__name__, child=program.name)
        self._wanted_end: asyncio.Future[str] | None = None
        self._healthy_since: float | None = None

    @property
    def healthy(self) -> bool:
        return self.health is Health.HEALTHY

    def restart(self, reason: str) -> None:
        """End this life of the child because it does not do what it should. Counts as a failure."""
        if self._wanted_end is not None and not self._wanted_end.done():
            self._wanted_end.set_result(reason)

    async def run(self) -> None:
        """Keep the child alive until it is given up. Cancel it to end the child."""
        failures = Failures()
        while True:
            reason, healthy_seconds = await self._live()
            failures = failures.after(healthy_seconds, self._patience)
            pause = failures.pause(self._patience)
            self.reason = f"{self.program.name} {reason}"
            if pause is None:
                self.reason += f": the failure of number {failures.count} in a row, so it is not started again; last lines of {self.program.log}:\n"
                self.reason += last_lines(self.program.log)
                self._become(Health.FAILED)
                self._log.error("child given up", reason=self.reason)
                return
            self._become(Health.DOWN)
            self._log.warning("child ended", how=reason, failures=failures.count, pause_seconds=pause)
            await asyncio.sleep(pause)

    async def _live(self) -> tuple[str, float]:
        """One life: why it ended, and for how many seconds it was healthy."""
        program = self.program
        self.starts += 1
        try:
            group = await ProcessGroup.start(program.command, program.environment, program.cores, program.log)
        except (OSError, subprocess.SubprocessError) as cause:
            return f"cannot be started as {' '.join(program.command)} ({cause})", 0.0
        self._wanted_end = asyncio.get_running_loop().create_future()
        self.incarnation, self.pid, self._healthy_since = uuid.uuid4().hex[:12], group.pid, None
        self._become(Health.STARTING)
        self._log.info("child started", pid=group.pid, incarnation=self.incarnation)
        ends = (asyncio.ensure_future(group.ended()), asyncio.ensure_future(self._silence()), self._wanted_end)
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            healthy_seconds = 0.0 if self._healthy_since is None else time.monotonic() - self._healthy_since
            self._become(Health.DOWN)  # before its group is ended, which takes seconds when it hangs
            return next(end.result() for end in ends if end in done), healthy_seconds
        finally:
            for end in ends:
                end.cancel()
            await group.end(self._patience.term_seconds)
            self.pid = 0

    async def _silence(self) -> str:
        """Ask for health until the child has been silent for too long; say so."""
        heard = time.monotonic()
        while True:
            if await self._answers():
                heard = time.monotonic()
                if self._healthy_since is None:
                    self._healthy_since = heard
                    self._log.info("child healthy", pid=self.pid, incarnation=self.incarnation)
                    self._become(Health.HEALTHY)
            allowed = self._patience.start_seconds if self._healthy_since is None else self._patience.silent_seconds
            if time.monotonic() - heard > allowed:
                return f"gave no healthy answer at {self.program.health_url} for {allowed:g} s and was ended"
            await asyncio.sleep(self._patience.poll_seconds)

    async def _answers(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=self._patience.answer_seconds)
        try:
            async with self._session.get(self.program.health_url, headers=self._credential.headers(), timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def _become(self, health: Health) -> None:
        self.health = health
        self.on_change()


def last_lines(log: Path) -> str:
    """The end of a log, for people who look at the cell and not into its files."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LAST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError as cause:
        return f"(cannot be read: {cause.strerror})"
    return "\n".join(text.splitlines()[-LAST_LINES:])

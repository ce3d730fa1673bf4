"""kill -9 at named points of a running job.

A point is what the stores or other processes say ("cell-1's trainer holds leases"). The victim is stopped first and the point is looked
at again: only if it still holds is the victim killed, so every kill hits the moment that it is meant for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.end_to_end.running import TOKEN, Job, Process, alive, descendants, process_of, said

ENGINE, TRAINER, AGENT = "tidemill_rollout.engine", "tidemill_trainer", "tidemill_cell"
GATEWAY, CONDUCTOR = "tidemill_rollout.gateway", "tidemill_rollout.conductor"

POLL_SECONDS = 0.002
LOOK_AGAIN_SECONDS = 0.03
"""After the stop: what the victim had already sent reaches the stores."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A point that holds now: at which cell ("": none), and what shows it."""

    cell: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Strike:
    point: str
    cell: str
    at: float  # unix seconds
    facts: tuple[str, ...]
    conductor_too: bool = False

    def __str__(self) -> str:
        return f"{self.point}: killed {self.cell or 'it'}; {', '.join(self.facts)}"


@dataclass(slots=True)
class Striker:
    job: Job
    _known: dict[tuple[str, str], Process] = field(default_factory=dict)

    def strike(self, point: str, module: str, look: Callable[[], Seen | None], seconds: float = 120.0, *, children_too: bool = False) -> Strike:
        """Kill the process of `module` at the cell that `look` names, and wait until another has taken its place."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            seen = look()
            process = self.process(module, seen.cell) if seen else None
            if seen and process:
                pids = [process.pid, *([p.pid for p in descendants(self.job) if p.parent == process.pid] if children_too else [])]
                _signal(pids, signal.SIGSTOP)
                time.sleep(LOOK_AGAIN_SECONDS)
                again = look()
                if again and again.cell == seen.cell:
                    _signal(pids, signal.SIGKILL)
                    struck = Strike(point, seen.cell, time.time(), again.facts)
                    self.wait_for_another(module, process, seen.cell)
                    return struck
                _signal(pids, signal.SIGCONT)
            self.goes_on(point)
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"not within {seconds:g} s: {point}:\n{said(self.job)}")

    def process(self, module: str, cell: str = "") -> Process | None:
        """Looked up again only when the one that was known has ended: all of /proc takes longer to read than some points last."""
        known = self._known.get((module, cell))
        if known is None or not alive([known]):
            known = process_of(self.job, module, cell)
            if known is not None:
                self._known[module, cell] = known
        return known

    def wait_for_another(self, module: str, than: Process, cell: str = "", seconds: float = 60.0) -> Process:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            process = self.process(module, cell)
            if process is not None and (process.pid, process.started) != (than.pid, than.started):
                return process
            self.goes_on(f"another {module} of {cell or 'the job'}")
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds:g} s: another {module} of {cell or 'the job'}:\n{said(self.job)}")

    def goes_on(self, waited_for: str) -> None:
        if self.job.process.poll() is not None:
            raise AssertionError(f"the job ended with {self.job.process.returncode} before: {waited_for}:\n{said(self.job)}")

    def number(self, module: str, cell: str, name: str) -> float:
        """Sum of a metric of that process; 0 from one that is away or stopped."""
        process = self.process(module, cell)
        if process is None:
            return 0.0
        url = f"http://127.0.0.1:{process.option('--port')}/metrics"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"}), timeout=2) as answer:
                lines = answer.read().decode().splitlines()
        except (urllib.error.URLError, OSError):
            return 0.0
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " ")))


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

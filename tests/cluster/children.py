"""Long-running programs of a test cluster: each has a log file, and dies with the test process."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.run_folder import RunFolder
from tests.cluster.sweeping import MARK
from tidemill.local.parent import die_with_parent

_POLL_SECONDS = 0.05
_LOG_LINES = 25


class NotStarted(Exception):
    """A program ended, or did not become ready in time; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def stop(self, patience_seconds: float = 10) -> None:
        self.process.terminate()
        try:
            self.process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def start(name: str, command: Sequence[str], run: RunFolder, environment: Mapping[str, str] | None = None) -> Child:
    """Start a program; its output is appended to `logs/name.log`. To be called from the main thread: the kernel's promise holds for a thread."""
    log = run.subfolder("logs") / f"{name}.log"
    environment = {**os.environ, **(environment or {}), MARK: run.name}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True, preexec_fn=die_with_parent
        )
    return Child(name, process, log)


def wait_until(ready: Callable[[], bool], what: str, seconds: float, *children: Child) -> None:
    """Wait for something that these children have to bring about.

    Raises:
        NotStarted: one of them ended, or the time is up.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        for child in children:
            if not child.running:
                raise NotStarted(f"{child.name} ended with status {child.process.returncode} before {what}:\n{child.last_words()}")
        if time.monotonic() > deadline:
            words = "\n".join(f"--- {child.name}\n{child.last_words()}" for child in children)
            raise NotStarted(f"no sign of this within {seconds:.0f} s: {what}\n{words}")
        time.sleep(_POLL_SECONDS)

"""One run's folder: everything that a test cluster puts on the machine carries its name, and is removed when the run ends, however it ends.

A reaper process waits for the run's end on a pipe, so it sees a SIGKILL as well; whatever a killed reaper leaves is removed by the next run.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.sweeping import LOCK, PREFIX, sweep

_REAPING_SECONDS = 180


class RunFolder:
    """A short path (a socket's has at most 107 characters), locked for as long as this process lives."""

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        for folder in base.glob(f"{PREFIX}*"):
            sweep(folder)
        self.name = f"{PREFIX}{secrets.token_hex(3)}"
        self.path = base / self.name
        unlocked = base / f".{self.name}"  # appears under its name once it is locked, or somebody's sweep would take it
        unlocked.mkdir(mode=0o700)
        self._lock = (unlocked / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path)
        command = [sys.executable, "-m", "tests.cluster.sweeping", str(self.path)]
        self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2], start_new_session=True)

    def subfolder(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def remove(self) -> None:
        """Have the reaper remove everything, and wait for it."""
        self._lock.close()
        assert self._reaper.stdin
        self._reaper.stdin.close()
        status = self._reaper.wait(_REAPING_SECONDS)
        if status or self.path.exists():
            raise RuntimeError(
                f"the test cluster {self.name} could not be removed (status {status}): {os.listdir(self.path)} are left in {self.path}"
            )

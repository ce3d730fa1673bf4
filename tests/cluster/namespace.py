"""A machine inside the machine: a network and mounts of its own, held by a process that does nothing else.

Nothing of it is visible outside, and it ends with its last process: no named namespaces, no mounts, no sockets are left behind.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.children import Child, start, wait_until
from tests.cluster.run_folder import RunFolder

_START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Namespace:
    holder: Child

    @property
    def process(self) -> int:
        return self.holder.process.pid

    @property
    def enter(self) -> tuple[str, ...]:
        """Put before a command, it runs inside."""
        return ("nsenter", f"--target={self.process}", "--net", "--mount", "--")

    def run(self, *command: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, env={**os.environ, **(environment or {})})
        if done.returncode:
            raise RuntimeError(f"{self.holder.name}: {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def make_namespace(name: str, run: RunFolder) -> Namespace:
    holder = start(name, ["unshare", "--net", "--mount", "--propagation=slave", "sleep", "infinity"], run)
    comm = Path(f"/proc/{holder.process.pid}/comm")
    wait_until(lambda: comm.read_text() == "sleep\n", f"the namespaces of {name} are there", _START_SECONDS, holder)
    made = Namespace(holder)
    made.run("mount", "-t", "tmpfs", "run", "/run")
    made.run("ip", "link", "set", "lo", "up")
    return made

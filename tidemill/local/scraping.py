"""Where a Prometheus on this machine finds a local job's processes: `prometheus.json` in the work folder, for its file-based service discovery.

A job that nobody can watch runs all the same: a disk that is full takes only the file.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tidemill.api import RLJob
from tidemill.local.commands import Layout, cell_names

FILE = "prometheus.json"

type Target = dict[str, list[str] | dict[str, str]]


def targets(job: RLJob, layout: Layout) -> list[Target]:
    """One a process, with the labels that its series get. An engine's own metrics pass through its agent."""

    def target(process: str, port: int, **labels: str) -> Target:
        return {"targets": [f"127.0.0.1:{port}"], "labels": {"job": job.metadata.name, "process": process, **labels}}

    found = [target("conductor", layout.ports.conductor), *(target("gateway", port) for port in layout.ports.gateways)]
    for cell, ports in zip(cell_names(job), layout.ports.cells, strict=True):
        found += [target("cell", ports.agent, cell=cell), target("engine", ports.agent, cell=cell, __metrics_path__="/engine/metrics")]
        if not cell.startswith("standalone"):
            found.append(target("trainer", ports.trainer, cell=cell))
    return found


def announce(folder: Path, found: list[Target]) -> None:
    """While the job runs. At once or not at all: Prometheus reads the file the moment it changes."""
    part = folder / f"{FILE}.part"
    with contextlib.suppress(OSError):
        part.write_text(json.dumps(found, indent=1) + "\n")
        part.replace(folder / FILE)


def withdraw(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / FILE).unlink(missing_ok=True)

"""The tiny job as benchmarks run it: each cell with a core of its own, and places for everything that a burst dispatches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny" / "rljob.yaml"
MOST_CELLS = 3


def cells() -> int:
    """As many as there are cores, at most three. Exits with 2 where two cells would share the only one: their times would mean nothing."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        print("this machine has one core: two cells would share it and their times would mean nothing", file=sys.stderr)
        sys.exit(2)
    return min(MOST_CELLS, cores)


def write_manifest(folder: Path, cells: int, steps: int) -> Path:
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    spec = document["spec"]
    schedule = spec["schedule"] | {"steps": steps, "asyncTrainingCells": 1}
    unfinished = (schedule["prefetchSteps"] + schedule["stepsPerBurst"]) * schedule["groupsPerStep"] * schedule["rolloutsPerGroup"]
    spec["schedule"] = schedule
    spec["cells"] |= {"count": cells, "capacity": -(-unfinished // cells)}
    spec["tasks"]["source"] = f"path:{EXAMPLE.parent / 'tasks'}"
    file = folder / "rljob.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def run(manifest: Path, place: Path, mode: str) -> str:
    """Run the job in the work folder `place`. Returns the last line of its output: the summary as JSON."""
    command = [sys.executable, "-m", "tidemill.cli.main", "run", str(manifest), "--workdir", str(place), "--mode", mode, "--json"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[-1]

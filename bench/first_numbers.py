"""Elastic against the two baselines on the tiny job, in one run on this machine: wall time and utilization, as ratios, printed as they are.

    .venv/bin/python bench/first_numbers.py [--rounds 1] [--steps 6]

Cells stand in for sets of GPUs, so each gets cores of its own: as many cells as there are cores, at most three. The modes share
dispatch, staleness and every line of code but the decision which cell trains when.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tidemill.telemetry.events import TideRead, read_events

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny" / "rljob.yaml"
MODES = ("Elastic", "Colocate", "Async")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each mode, in turn")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        print("this machine has one core: two cells would share it and their times would mean nothing", file=sys.stderr)
        return 2
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        manifest = _manifest(Path(folder), min(3, cores), options.steps)
        for number in range(options.rounds):
            for mode in MODES:
                print(f"round {number + 1}, {mode} ...", file=sys.stderr, flush=True)
                runs[mode].append(_run(manifest, Path(folder) / f"{mode}-{number}", mode))
    _print(runs)
    return 0


def _manifest(folder: Path, cells: int, steps: int) -> Path:
    """The tiny job with `cells` cells that together serve what a burst dispatches."""
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


def _run(manifest: Path, workdir: Path, mode: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tidemill.cli.main", "run", str(manifest), "--workdir", str(workdir), "--mode", mode, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    tides = [e for e in read_events(workdir / "metrics.jsonl") if isinstance(e, TideRead)]
    first = next(t.time for t in tides if t.started > 0)  # engines are up: what follows is the job's own time
    busy = available = 0.0
    for before, after in itertools.pairwise(tides):
        seconds = after.time - before.time
        busy += seconds * min(before.dispatched - before.terminated, before.rollout_capacity)
        available += seconds * before.rollout_capacity
    hours = summary["hoursByRole"]
    return {
        "seconds": tides[-1].time - first,
        "rollout utilization": busy / available if available else 0.0,
        "training share": hours.get("Training", 0.0) / sum(hours.values()),
        "flips": len(summary["flips"]),
    }


def _print(runs: dict[str, list[dict[str, float]]]) -> None:
    """A row for each mode: medians, and the wall time as a ratio to Elastic's, pair by pair."""
    print(f"{'mode':10} {'seconds':>8} {'/ Elastic':>10} {'rollout utilization':>20} {'training share':>15} {'flips':>6}")
    for mode, done in runs.items():
        ratio = statistics.median(one["seconds"] / elastic["seconds"] for one, elastic in zip(done, runs["Elastic"], strict=True))
        middle = {name: statistics.median(one[name] for one in done) for name in done[0]}
        print(
            f"{mode:10} {middle['seconds']:8.1f} {ratio:10.2f} {middle['rollout utilization']:20.2f} "
            f"{middle['training share']:15.2f} {middle['flips']:6.0f}"
        )


if __name__ == "__main__":
    sys.exit(main())

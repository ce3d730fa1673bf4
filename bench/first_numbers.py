"""Elastic against the two baselines on the tiny job, in one run on this machine: wall time and utilization, as ratios, printed as they are.

    .venv/bin/python bench/first_numbers.py [--rounds 1] [--steps 6]

Cells stand in for sets of GPUs, so each gets cores of its own: as many cells as there are cores, at most three. The modes share
dispatch, staleness and every line of code but the decision which cell trains when.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

from bench import tiny_job
from tidemill.telemetry.events import TideRead, read_events

MODES = ("Elastic", "Colocate", "Async")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each mode, in turn")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    cells = tiny_job.cells()
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as folder:
        manifest = tiny_job.write_manifest(Path(folder), cells, options.steps)
        for number in range(options.rounds):
            for mode in MODES:
                print(f"round {number + 1}, {mode} ...", file=sys.stderr, flush=True)
                runs[mode].append(_run(manifest, Path(folder) / f"{mode}-{number}", mode))
    _print(runs)
    return 0


def _run(manifest: Path, workdir: Path, mode: str) -> dict[str, float]:
    summary = json.loads(tiny_job.run(manifest, workdir, mode))
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

"""The tiny job for real and simulated, in all three modes: do hours and the order of the modes agree?

    .venv/bin/python bench/real_vs_simulated.py [--rounds 1] [--steps 12] [--keep DIR]

Every mode runs on this machine with as many cells as cores, at most three, each pinned to its own. Durations and costs are measured in the
records of these runs and simulated twice: *own*, each mode under its own records, which tests the simulator's mechanics; and *cross*, all modes
under Elastic's records, which is what a user does who has run one mode and asks about the others. A real job's time counts from its first execution.
With --keep the work folders stay in DIR, and folders that are there already are read instead of run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench import tiny_job
from tidemill.api import load_rljob
from tidemill.policy.decide import Mode
from tidemill.simulate.job import Job
from tidemill.simulate.measured import measure
from tidemill.simulate.setup import setup_of
from tidemill.telemetry.events import TideRead, VersionPublished, read_events

AGREES = 0.10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="runs of each mode, in turn")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--keep", type=Path, help="where work folders stay")
    options = parser.parse_args()
    cells = tiny_job.cells()
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        manifest = tiny_job.write_manifest(folder, cells, options.steps)
        rounds = [_round(manifest, folder, number) for number in range(options.rounds)]
    return _print(rounds)


def _round(manifest: Path, folder: Path, number: int) -> dict[Mode, tuple[float, float, float]]:
    """Seconds of each mode: real, own, cross."""
    setup = setup_of(load_rljob(manifest))
    places = {mode: folder / f"{mode}-{number}" for mode in Mode}
    for mode, place in places.items():
        if not (place / "metrics.jsonl").exists():
            print(f"round {number + 1}, {mode} ...", file=sys.stderr, flush=True)
            tiny_job.run(manifest, place, mode)
    elastic = measure(places[Mode.ELASTIC])
    found = {}
    for mode, place in places.items():
        how = replace(setup, mode=mode)
        own = Job(how, *measure(place)).run().seconds
        cross = Job(how, *elastic).run().seconds
        found[mode] = (_real_seconds(place), own, cross)
    return found


def _real_seconds(place: Path) -> float:
    events = list(read_events(place / "metrics.jsonl"))
    first = next(e.time for e in events if isinstance(e, TideRead) and e.started > 0)  # engines are up: what follows is the job's own time
    return max(e.time for e in events if isinstance(e, VersionPublished)) - first


def _print(rounds: list[dict[Mode, tuple[float, float, float]]]) -> int:
    print(f"{'mode':10} {'real s':>8} {'own s':>8} {'own/real':>9} {'cross s':>8} {'cross/real':>11}")
    medians = {mode: tuple(statistics.median(r[mode][n] for r in rounds) for n in range(3)) for mode in Mode}
    for mode, (real, own, cross) in medians.items():
        print(f"{mode:10} {real:8.1f} {own:8.1f} {own / real:9.3f} {cross:8.1f} {cross / real:11.3f}")
    orders = [sorted(Mode, key=lambda mode: medians[mode][n]) for n in range(3)]
    for name, order in zip(("real", "own", "cross"), orders, strict=True):
        print(f"fastest first, {name}: {', '.join(order)}")
    worst = max(abs(own / real - 1) for real, own, _ in medians.values())
    print(f"largest difference, own: {worst:.1%} (goal: {AGREES:.0%}); order the same: {orders[0] == orders[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

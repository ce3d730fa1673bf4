"""Makes `recordings/world-extended.json`: a real conductor with Refill and extensions, in its fake world, at the speed of a slow clock.

Run: .venv/bin/python -m tests.tidemill.simulate.record
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.world import World, settings, world
from tests.tidemill.simulate.replay import FLIP_SECONDS, FOLDER, GROUP_SECONDS, Extended
from tidemill.telemetry.events import ExecutionEnded, FlipEnded, RoleAcknowledged, StepCommitted, VersionPublished

SEED = 55
"""Under these durations GainGate keeps a cell from leaving, and the core stays over the end of a burst."""


async def record() -> dict[str, Any]:
    how = Extended({}).setup
    with tempfile.TemporaryDirectory() as folder:
        changes = settings(
            plan=how.plan, cells=how.cells, capacity=how.capacity, max_staleness=how.bound, refill=how.refill, extensions=how.extensions
        )
        async with world(Path(folder), changes) as job:
            job.sandboxes.seconds = lambda execution: Random(f"{SEED}/{execution}").choice((1.0, 2.0, 8.0))
            for agent in job.agents:
                agent.flip_seconds = FLIP_SECONDS
            for trainer in job.trainers.values():
                trainer.micro_step_seconds = GROUP_SECONDS
            await job.to_the_end(300)
            check(job)
            return document(job)


def document(job: World) -> dict[str, Any]:
    """Seconds since the first publication."""
    zero = job.of(VersionPublished)[0].time
    acknowledged = {(e.cell, e.epoch): e.time - zero for e in job.of(RoleAcknowledged)}
    started = dict(job.rows("SELECT id, started FROM executions"))
    executions = sorted(job.of(ExecutionEnded), key=lambda e: (e.group, e.execution))
    return {
        "serving": {cell: at for (cell, epoch), at in acknowledged.items() if epoch == 1},
        "executions": [
            {"id": e.execution, "group": e.group, "task": e.task, "started": started[e.execution] - zero, "ended": e.time - zero, "tokens": 3}
            for e in executions
        ],
        "groups": [{"id": g, "version": v, "step": s} for g, v, s in job.rows("SELECT id, version, step FROM groups ORDER BY id")],
        "flips": [
            {"cell": f.cell, "to": f.to, "epoch": f.epoch, "began": f.time - f.seconds - zero, "settled": acknowledged[f.cell, f.epoch]}
            for f in sorted(job.of(FlipEnded), key=lambda f: f.time - f.seconds)
        ],
        "commits": [e.time - zero for e in job.of(StepCommitted)],
        "publications": [{"version": e.version, "step": e.step, "time": e.time - zero} for e in job.of(VersionPublished)],
    }


if __name__ == "__main__":
    text = json.dumps(asyncio.run(record()), default=str).replace("{", "\n{")
    (FOLDER / "world-extended.json").write_text(text + "\n")

"""The operator on a real API server: what it makes of a job, from creation to deletion."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.cluster.api_server import ApiServer
from tests.cluster.operator_process import cluster, is_, job
from tests.cluster.operator_stand_ins import processes

CELLS = ["cell-0", "cell-1"]


async def test_a_job_gets_its_objects_flips_its_cells_in_place_and_succeeds(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        kinds = ("GPUCell", "Service", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget", "StatefulSet", "Pod")
        assert Counter({kind: len(await here.all(kind)) for kind in kinds}) == {
            "GPUCell": 2, "Service": 2, "ServiceAccount": 3, "Role": 1, "RoleBinding": 1, "NetworkPolicy": 3, "PodDisruptionBudget": 3,
            "StatefulSet": 2, "Pod": 4,
        }  # fmt: skip
        uids = {name: pod["metadata"]["uid"] for name, pod in (await here.pods()).items()}

        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))
        await there.conductor.end_burst()
        await here.until(lambda: here.is_acknowledged("cell-0", "Rollout", 3))
        flips = (await here.until(here.status, lambda status: len(status.get("flips", ())) == 2))["flips"]
        assert [(f["cell"], f["to"], f["epoch"]) for f in flips] == [("cell-0", "Training", 2), ("cell-0", "Rollout", 3)]
        assert {name: pod["metadata"]["uid"] for name, pod in (await here.pods()).items()} == uids

        await there.conductor.finish_job()
        await here.until(here.phase, is_("Succeeded"))
        await here.until(here.pods, lambda pods: not pods)
        assert await here.get("ConfigMap", "job-history")
        reasons = {event["reason"] for event in await here.all("Event")}
        assert {"CellFlipped", "JobRunning", "JobSucceeded"} <= reasons

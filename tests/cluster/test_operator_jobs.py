"""The operator on a real API server: what it makes of a job, from creation to deletion."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.cluster.api_server import ApiServer
from tests.cluster.calls import audited
from tests.cluster.operator_process import Cluster, cluster, is_, job
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


async def test_several_gateways_have_a_service_and_a_number_each(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(gateway={"replicas": 2}), there.conductor.url)
        await here.until(here.is_ready)
        pods = await here.until(lambda: here.pods("gateway"), lambda pods: len(pods) == 2)
        numbers = {name: pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] for name, pod in pods.items()}
        assert numbers == {"job-gateway-0": "0", "job-gateway-1": "1"}
        services = {service["metadata"]["name"]: service["spec"] for service in await here.all("Service")}
        everywhere = ",".join(f"http://{services[name]['clusterIP']}:7001" for name in ("job-gateway-0", "job-gateway-1"))
        assert services["job-gateway-1"]["selector"]["statefulset.kubernetes.io/pod-name"] == "job-gateway-1"
        for pod in (*pods.values(), *(await here.pods("cell")).values(), *(await here.pods("conductor")).values()):
            arguments = pod["spec"]["containers"][0]["args"]
            assert arguments[arguments.index("--gateway-url") + 1] == everywhere


async def test_an_operator_that_starts_anew_writes_nothing_of_what_stands_there(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        before = await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        await here.until(lambda: _told(here), lambda told: told == [(1, True), (1, True)])
        await before.stop()
        offset = api_server.audit.stat().st_size
        await here.start()
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))
        flip = {("gpucells", "job-cell-0"), ("gpucells/status", "job-cell-0"), ("rljobs/status", "job")}

        async def written() -> set[tuple[str, str]]:
            calls = audited(api_server.audit, f"system:serviceaccount:{namespace}:{here.account}", offset)
            return {(call.resource, call.name) for call in calls if call.writes and call.resource not in ("leases", "events")}

        await here.until(written, lambda done: done >= flip)
        assert await written() == flip, "the flip, and no more"
        assert not {event["reason"] for event in await here.all("Event")} & {"JobPaused", "Silent", "ConductorReachableAgain"}


async def _told(here: Cluster) -> list[tuple[int, bool]]:
    """Of each cell: the epoch in its spec, and whether its status speaks of that spec."""
    cells = await here.all("GPUCell")
    return [(cell["spec"]["epoch"], cell.get("status", {}).get("observedGeneration") == cell["metadata"]["generation"]) for cell in cells]

"""Suspend, resume, delete and errors at every phase, on a real API server: nothing is stuck, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api_server import ApiServer
from tests.cluster.operator_process import Cluster, cluster, is_, job
from tests.cluster.operator_stand_ins import processes
from tests.cluster.proxy import FaultProxy

CELLS = ["cell-0", "cell-1"]
FOREIGN_ACCOUNT = {"template": {"spec": {"serviceAccountName": "mine"}}}  # what no job may ask for


async def test_a_running_job_is_suspended_and_resumed_at_the_same_step(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        await here.edit("RLJob", "job", suspend=True)
        await here.until(here.phase, is_("Suspended"))
        assert there.conductor.suspended, "the conductor was asked first"
        assert not await here.pods()
        assert len(await here.all("GPUCell")) == 2
        assert {c["metadata"]["name"] for c in await here.all("PersistentVolumeClaim")} >= {"job-checkpoints", "work-job-conductor-0"}
        await here.edit("RLJob", "job", suspend=False)
        await here.until(here.phase, is_("Running"))
        assert not there.conductor.suspended
        assert len(await here.pods("cell")) == 2


async def test_a_change_of_steps_reaches_the_running_conductor(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        uids = {name: pod["metadata"]["uid"] for name, pod in (await here.pods()).items()}
        await here.edit("RLJob", "job", schedule={"steps": 7})
        await here.until(lambda: _value(there.conductor.steps), is_(7))
        await here.until(here.status, lambda status: status["progress"] == "0/7")
        assert {name: pod["metadata"]["uid"] for name, pod in (await here.pods()).items()} == uids


async def test_pins_and_cordons_are_forwarded(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        await here.edit("GPUCell", "job-cell-0", pin="Rollout")
        await here.edit("GPUCell", "job-cell-1", cordon=True)
        await here.until(lambda: _value(set(there.conductor.constraints)), is_({"cell-0", "cell-1"}))
        assert there.conductor.constraints["cell-0"].pin == "Rollout"
        assert there.conductor.constraints["cell-1"].cordon


@pytest.mark.parametrize("phase", ["Starting", "Running", "Suspended", "Succeeded", "Invalid"])
async def test_a_job_is_deleted_at_any_phase_with_all_it_owns(api_server: ApiServer, namespace: str, tmp_path: Path, phase: str) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        document = job(conductor=FOREIGN_ACCOUNT) if phase == "Invalid" else job(suspend=phase == "Suspended")
        await here.submit(document, "http://127.0.0.1:9" if phase == "Starting" else there.conductor.url)
        if phase == "Succeeded":
            await here.until(here.phase, is_("Running"))
            await there.conductor.finish_job()
        await here.until(here.phase, is_(phase))
        await here.delete("RLJob", "job")
        await here.until(lambda: nothing_is_left(here))


async def test_a_job_is_deleted_when_the_operator_went_first(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        operator = await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        operator.kill()
        await operator.process.wait()
        await here.delete("RLJob", "job")
        await here.until(lambda: nothing_is_left(here))


async def test_deleting_the_namespace_is_not_stuck_and_harms_no_other_job(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    other = f"{namespace}-b"
    await asyncio.to_thread(api_server.make_namespace, other)
    async with cluster(api_server, namespace, tmp_path, others=(other,)) as here, processes(CELLS) as there, processes(CELLS) as others:
        await here.start(namespaces=[namespace, other])
        await here.submit(job(), there.conductor.url)
        elsewhere = Cluster(api_server, other, tmp_path, here.client, node="n")
        kubelet = asyncio.create_task(elsewhere.play_kubelet())
        await elsewhere.submit(job(), others.conductor.url)
        await here.until(here.phase, is_("Running"))
        await here.until(elsewhere.phase, is_("Running"))
        await asyncio.to_thread(api_server.delete_namespace, other)
        await here.until(lambda: _namespace_is_gone(api_server, other))
        kubelet.cancel()
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))


async def test_a_hostile_job_beside_a_good_one_disturbs_it_not(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        bad = {
            "no-priority": job("no-priority", cells=2) | {"spec": _with_cells(template={"spec": {"priorityClassName": "none-such"}})},
            "wrong-shape": job("wrong-shape") | {"spec": _with_cells(template={"spec": {"containers": [{"name": "cell", "command": ["sh"]}]}})},
            "not-a-pod": job("not-a-pod") | {"spec": _with_cells(template={"spec": {"tolerations": "all of them"}})},
            "too-large": job("too-large") | {"spec": _with_cells(resources={"cpu": "1", "memory": "1Gi"}, count=400)},
        }
        for document in bad.values():
            await here.submit(document)
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        for name, kind in (("no-priority", "Created"), ("wrong-shape", "Invalid"), ("not-a-pod", "Created")):
            condition = await here.until(lambda kind=kind, name=name: here.condition(kind, name), is_wrong)
            assert condition["message"]
            assert name not in {p["metadata"]["labels"]["tidemill.dev/job"] for p in (await here.pods()).values()}
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("ImagePullBackOff", {"phase": "Pending", "containerStatuses": [{"name": "cell", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
        ("OOMKilled", {"containerStatuses": [{"name": "cell", "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "state": {}}]}),
        ("Unschedulable", {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/0 nodes"}]}),
    ],
)
async def test_a_pods_trouble_is_a_condition_of_the_job(
    api_server: ApiServer, namespace: str, tmp_path: Path, reason: str, status: dict[str, Any]
) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        here.unplaced = {"job-cell-1-0"}
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.pods, lambda pods: "job-cell-1-0" in pods)
        for container in status.get("containerStatuses", ()):
            container |= {"image": "x", "imageID": "", "ready": False, "restartCount": 1}
        await here.set_pod_status("job-cell-1-0", status)
        condition = await here.until(lambda: here.condition("PodsHealthy"), lambda c: c.get("reason") == reason)
        assert "pod job-cell-1-0" in condition["message"]


@pytest.mark.parametrize("trouble", ["500", "429", "409", "410 and dropped watches", "lost answers", "stale lists"])
async def test_whatever_goes_wrong_on_the_way_to_the_api_server_the_job_converges_without_a_storm(
    api_server: ApiServer, namespace: str, tmp_path: Path, trouble: str
) -> None:
    with FaultProxy(api_server).running() as proxy:
        async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
            await here.start(proxy.url)
            await here.submit(job(), there.conductor.url)
            await here.until(here.phase, is_("Running"))
            await asyncio.sleep(1.5)
            before = len(proxy.calls)
            match trouble:
                case "500" | "429" | "409":
                    proxy.answer(int(trouble), "PATCH|POST", "(gpucells|rljobs|events)", count=6)
                case "410 and dropped watches":
                    proxy.drop_watches(expired=True)
                case "lost answers":
                    proxy.lose_answers(path="(gpucells|rljobs)", count=4)
                case "stale lists":
                    proxy.freeze_lists()
                    proxy.drop_watches(expired=True)
            await there.conductor.finish(8)
            await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))
            proxy.heal()
            await there.conductor.end_burst()
            await here.until(lambda: here.is_acknowledged("cell-0", "Rollout", 3))
            done = [call for call in list(proxy.calls)[before:] if call.writes and call.resource != "leases"]
            assert len(done) < 40
            assert [o.epoch for o in there.agents["cell-0"].orders] == sorted({o.epoch for o in there.agents["cell-0"].orders})


async def nothing_is_left(here: Cluster) -> bool:
    kinds = ("GPUCell", "Pod", "StatefulSet", "Service", "ConfigMap", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget")
    left = [item for kind in kinds for item in await here.all(kind)]
    claims = await here.all("PersistentVolumeClaim")  # a finalizer holds them until pods are gone
    return await here.get("RLJob", "job") is None and not left and not claims


def is_wrong(condition: dict[str, Any]) -> bool:
    return condition.get("status") == ("True" if condition.get("type") == "Invalid" else "False")


def _with_cells(**cells: Any) -> dict[str, Any]:
    return {**job()["spec"], "cells": {"count": 2, "capacity": 8, **cells}}


async def _value[T](value: T) -> T:
    return value


async def _namespace_is_gone(server: ApiServer, name: str) -> bool:
    return name not in await asyncio.to_thread(server.kubectl, "get", "namespaces", "--output=name")

"""Objects that others have put in the way, changed or deleted: nothing of theirs is taken over, what is ours comes back, and it is said."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api_server import ApiServer
from tests.cluster.calls import audited
from tests.cluster.operator_process import Cluster, cluster, job
from tests.cluster.operator_stand_ins import processes

CELLS = ["cell-0", "cell-1"]


async def test_an_object_of_somebody_else_that_has_our_name_is_left_alone_until_it_is_gone(
    api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job", "namespace": namespace}, "data": {"mine": "yes"}}
        await here.kube.create(theirs)
        await here.start()
        await here.submit(job(), there.conductor.url)
        condition = await here.until(lambda: here.condition("Created"), lambda c: c.get("status") == "False")
        assert "ConfigMap job is there and does not belong to this job" in condition["message"]
        found = await here.get("ConfigMap", "job")
        assert found["data"] == {"mine": "yes"}
        assert not found["metadata"].get("ownerReferences")
        await here.delete("ConfigMap", "job")
        await here.until(lambda: here.condition("Created"), lambda c: c.get("status") == "True", seconds=90)
        assert set((await here.get("ConfigMap", "job"))["data"]) == {"job.yaml", "trust.json", "sandbox.json"}


async def test_a_job_made_anew_under_its_name_shares_nothing_with_the_former(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there, processes(CELLS) as anew:
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))
        former = await _uids(here)
        await here.delete("RLJob", "job")
        await here.submit(job(), anew.conductor.url)
        await here.until(here.is_ready, seconds=90)
        assert not former & await _uids(here)
        await here.until(lambda: here.is_acknowledged("cell-0", "Rollout", 1))


async def test_a_deleted_service_comes_back_at_its_address_or_it_is_said_what_to_do(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        before = await here.get("Service", "job-conductor")
        await here.delete("Service", "job-conductor")
        after = await here.until(lambda: here.get("Service", "job-conductor"))
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["spec"]["clusterIP"] == before["spec"]["clusterIP"]


async def test_cells_that_are_tampered_with_or_deleted_come_back(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)
        with pytest.raises(Exception, match="only with a larger epoch"):
            await here.edit("GPUCell", "job-cell-0", role="Training")
        await here.edit("GPUCell", "job-cell-0", role="Training", epoch=3)  # nobody granted it
        condition = await here.until(lambda: _condition_of_cell(here, "job-cell-0", "EpochAhead"))
        assert "delete the GPUCell" in condition["message"]
        assert there.agents["cell-0"].role == "Rollout", "the conductor's word counts"
        await here.delete("GPUCell", "job-cell-0")
        await here.until(lambda: here.get("GPUCell", "job-cell-0"))
        await here.until(lambda: here.is_acknowledged("cell-0", "Rollout", 1))
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))


async def test_what_somebody_changes_by_hand_is_set_back_and_said(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(), there.conductor.url)
        await here.until(here.is_ready)

        def change(kind: str, name: str, patch: dict[str, Any]) -> None:
            words = ("patch", kind, name, f"--namespace={namespace}", "--type=merge", f"--patch={json.dumps(patch)}")
            api_server.kubectl(*words, "--field-manager=somebody")

        before = await here.get("Service", "job-gateway-0")
        change("service", "job-gateway-0", {"spec": {"selector": {"app": "mine"}}, "metadata": {"labels": {"more": "than-before"}}})
        change("statefulset", "job-conductor", {"spec": {"replicas": 3}})
        service = await here.until(lambda: here.get("Service", "job-gateway-0"), lambda s: s["spec"]["selector"] == before["spec"]["selector"])
        assert service["metadata"]["labels"]["more"] == "than-before", "what is not ours to say stays"
        await here.until(lambda: here.get("StatefulSet", "job-conductor"), lambda s: s["spec"]["replicas"] == 1)
        events = await here.until(lambda: here.all("Event"), lambda all: len([e for e in all if e["reason"] == "ChangeReverted"]) == 2)
        assert any("Service job-gateway-0: spec.selector" in e["note"] and "changed by somebody" in e["note"] for e in events)
        written = Counter(_applied(here))
        assert {thing: times for thing, times in written.items() if times > 1} == {
            ("services", "job-gateway-0"): 2,
            ("statefulsets", "job-conductor"): 2,
        }, "everything else once, when it was made"


def _applied(here: Cluster) -> Iterator[tuple[str, str]]:
    """What the operator has applied, each time, of what others might change."""
    kinds = ("statefulsets", "services", "configmaps", "serviceaccounts", "roles", "rolebindings", "networkpolicies", "poddisruptionbudgets")
    for call in audited(here.server.audit, f"system:serviceaccount:{here.namespace}:{here.account}"):
        if call.verb == "patch" and call.resource in kinds and call.status < 300:
            yield call.resource, call.name


async def _uids(here: Cluster) -> set[str]:
    kinds = ("GPUCell", "Pod", "StatefulSet", "Service", "ConfigMap", "Role", "PersistentVolumeClaim")
    return {item["metadata"]["uid"] for kind in kinds for item in await here.all(kind)}


async def _condition_of_cell(here: Cluster, name: str, kind: str) -> dict[str, Any]:
    found = await here.get("GPUCell", name)
    return next((c for c in (found.get("status") or {}).get("conditions", ()) if c["type"] == kind), {})

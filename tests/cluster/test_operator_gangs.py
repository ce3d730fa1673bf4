"""Where the API server knows PodGroups, the pods of a cell of several nodes are one group for the scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api_server import ApiServer, running
from tests.cluster.operator_process import cluster, job
from tests.cluster.operator_stand_ins import processes

CELLS = ["cell-0", "cell-1"]
PAIRS = {"count": 2, "capacity": 8, "nodesPerCell": 2}


@pytest.fixture
def modern_server() -> Iterator[ApiServer]:
    """With gang scheduling, which Kubernetes 1.37 has, switched off, as a beta."""
    with running("--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1beta1=true") as server:
        yield server


async def test_the_pods_of_a_cell_are_a_group_that_is_placed_as_a_whole(modern_server: ApiServer, tmp_path: Path) -> None:
    modern_server.make_namespace("gangs")
    async with cluster(modern_server, "gangs", tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(cells=2) | {"spec": job()["spec"] | {"cells": PAIRS}}, there.conductor.url)
        await here.until(here.is_ready)
        groups = {group["metadata"]["name"]: group["spec"]["schedulingPolicy"] for group in await here.all("PodGroup")}
        assert groups == {"job-cell-0": {"gang": {"minCount": 2}}, "job-cell-1": {"gang": {"minCount": 2}}}
        named = {name: pod["spec"]["schedulingGroup"]["podGroupName"] for name, pod in (await here.pods("cell")).items()}
        assert named == {f"job-{cell}-{rank}": f"job-{cell}" for cell in CELLS for rank in (0, 1)}
        await here.delete("RLJob", "job")
        await here.until(lambda: here.all("PodGroup"), lambda left: not left)


async def test_elsewhere_there_is_no_group_and_nobody_misses_it(api_server: ApiServer, namespace: str, tmp_path: Path) -> None:
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await here.start()
        await here.submit(job(cells=2) | {"spec": job()["spec"] | {"cells": PAIRS}}, there.conductor.url)
        await here.until(here.is_ready)
        assert all("schedulingGroup" not in pod["spec"] for pod in (await here.pods("cell")).values())

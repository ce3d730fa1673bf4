"""The operator with the chart's configuration and exactly the chart's rights: no call of it is refused, from the Lease to the deletion of the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from tests.cluster.api_server import ApiServer
from tests.cluster.calls import audited
from tests.cluster.operator_process import cluster, is_, job
from tests.cluster.operator_stand_ins import processes
from tests.helm.chart import CHART, Manifest, helm, only, render

CELLS = ["cell-0", "cell-1"]


@pytest.mark.parametrize("scope", [{}, {"singleNamespace": True}], ids=["all namespaces", "one namespace"])
async def test_a_whole_job_needs_no_right_that_the_chart_does_not_grant(
    api_server: ApiServer, namespace: str, tmp_path: Path, scope: Manifest
) -> None:
    values = {**scope, "crds": {"install": False}, "replicas": 0}
    written = yaml.safe_load(only(render(values, namespace, namespace), "ConfigMap")["data"]["operator.yaml"])
    # Ports are the test's own, and so is the scope: other tests' namespaces are none of this operator's business.
    taken = {key: value for key, value in written.items() if key not in ("healthPort", "metricsPort", "namespaces", "development")}
    async with cluster(api_server, namespace, tmp_path) as here, processes(CELLS) as there:
        await asyncio.to_thread(api_server.kubectl, "delete", "-f", "-", input=here.rights())  # those that every test of the operator gets
        install = ("install", namespace, str(CHART), f"--namespace={namespace}")
        await asyncio.to_thread(helm, *install, values=values, kubeconfig=api_server.kubeconfig)
        await here.start(**taken)
        await here.submit(job(ttlSecondsAfterFinished=1), there.conductor.url)
        await here.until(here.phase, is_("Running"))
        await there.conductor.finish(8)
        await here.until(lambda: here.is_acknowledged("cell-0", "Training", 2))
        await there.conductor.end_burst()
        await here.until(lambda: here.is_acknowledged("cell-0", "Rollout", 3))
        await here.delete("Pod", "job-cell-1-0")
        await here.until(lambda: here.pods("cell"), lambda pods: "job-cell-1-0" in pods)
        await there.conductor.finish_job()
        await here.until(lambda: here.get("RLJob", "job"), is_(None))
        await here.operators[0].stop()
        await asyncio.to_thread(helm, "uninstall", namespace, f"--namespace={namespace}", kubeconfig=api_server.kubeconfig)
    calls = list(audited(api_server.audit, f"system:serviceaccount:{namespace}:{here.account}"))
    assert {"leases", "rljobs", "gpucells/status", "pods", "events", "nodes"} <= {call.resource for call in calls}
    assert not {(call.verb, call.resource) for call in calls if call.status == 403}

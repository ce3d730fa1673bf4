"""A job on real nodes: its processes start in pods, behind their network policies, and the operator tells what it waits for."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.node.jobs import manifest, start_operator, submit
from tests.cluster.pods import until


def ready(cluster: Cluster, namespace: str) -> set[str]:
    conditions = {pod["metadata"]["name"]: pod["status"].get("conditions", []) for pod in cluster.get("pods", f"--namespace={namespace}")["items"]}
    return {name for name, found in conditions.items() if any((c["type"], c["status"]) == ("Ready", "True") for c in found)}


@pytest.mark.timeout(600)
def test_conductor_and_gateway_serve_and_cells_without_a_node_are_named(cluster: Cluster, namespace: str) -> None:
    start_operator(cluster, namespace)
    try:
        job = manifest()
        job["spec"]["cells"]["template"]["spec"]["nodeSelector"] = {"accelerator": "none-such"}
        submit(cluster, namespace, job)
        until(lambda: {"tiny-conductor-0", "tiny-gateway-0"} <= ready(cluster, namespace), "conductor and gateway are ready", 300)
        until(lambda: condition(cluster, namespace, "ConductorReachable")["status"] == "True", "the operator reaches the conductor", 120)
        placed = until(lambda: condition(cluster, namespace, "Placed"), "the operator tells about places")
        assert placed["status"] == "False"
        assert "tiny-cell-0-0: Unschedulable" in condition(cluster, namespace, "PodsHealthy")["message"] + placed["message"]
        assert not any("cell" in name for name in ready(cluster, namespace))
    finally:
        cluster.kubectl("delete", "rljob", "tiny", f"--namespace={namespace}", "--ignore-not-found", "--timeout=120s")


def condition(cluster: Cluster, namespace: str, kind: str) -> dict[str, str]:
    found = cluster.get("rljob", "tiny", f"--namespace={namespace}").get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == kind), {"status": "", "message": ""})

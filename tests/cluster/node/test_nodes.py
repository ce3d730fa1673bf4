"""The nodes are real ones: pods run and reach each other, policies hold, volumes are shared, and a node that dies is missed."""

from __future__ import annotations

import sys
import urllib.request
from typing import Any

import pytest

from tests.cluster.access import KubectlFailed
from tests.cluster.cluster import Cluster
from tests.cluster.pods import create, python_pod, until, wait_ready

SERVER = """
import http.server, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.uname().nodename.encode())
    def log_message(self, *arguments): pass
print("serving", flush=True)
http.server.HTTPServer(("", 8000), Answer).serve_forever()
"""
SLEEPER = "import time; time.sleep(3600)"
ASK = "import urllib.request, sys; print(urllib.request.urlopen(f'http://{sys.argv[1]}:8000', timeout=2).read().decode())"


def service(name: str, node_app: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": node_app}, "ports": [{"port": 8000}]},
    }


def claim(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def ask(cluster: Cluster, namespace: str, pod: str, address: str) -> str:
    """What a pod hears from a server at an address; empty when it hears nothing."""
    try:
        return cluster.kubectl("exec", pod, f"--namespace={namespace}", "--", sys.executable, "-c", ASK, address).strip()
    except KubectlFailed as failure:
        if "timed out" in str(failure) or "refused" in str(failure):
            return ""
        raise


def phase(cluster: Cluster, namespace: str, pod: str) -> str:
    return str(cluster.get("pod", pod, f"--namespace={namespace}")["status"]["phase"])


@pytest.fixture
def pair(cluster: Cluster, namespace: str) -> tuple[str, str]:
    """A server on n0 and a pod on n1: the server's address, and its service's."""
    create(cluster, namespace, python_pod("server", SERVER, node="n0"), python_pod("asker", SLEEPER, node="n1"), service("front", "server"))
    server, asker = wait_ready(cluster, namespace, "server", "asker")
    assert (server["spec"]["nodeName"], asker["spec"]["nodeName"]) == ("n0", "n1")
    front = cluster.get("service", "front", f"--namespace={namespace}")
    return server["status"]["podIP"], front["spec"]["clusterIP"]


def test_pods_on_different_nodes_reach_each_other_and_services_and_kubectl_shows_their_logs(
    cluster: Cluster, namespace: str, pair: tuple[str, str]
) -> None:
    address, front = pair
    assert ask(cluster, namespace, "asker", address) == "server"
    assert until(lambda: ask(cluster, namespace, "asker", front), "the service leads to its pod") == "server"
    assert cluster.kubectl("logs", "server", f"--namespace={namespace}") == "serving\n"
    port = cluster.forward(front, 8000)
    assert until(lambda: cluster.exec_in_node(1, sys.executable, "-c", ASK, front), "a node reaches the service").strip() == "server"
    assert ask_here(port) == "server"


def ask_here(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5) as answer:
        return str(answer.read().decode())


def test_a_pod_that_may_do_nothing_runs_the_product(cluster: Cluster, namespace: str) -> None:
    confined = python_pod("confined", "import os, aiohttp, tidemill_operator, tidemill_rollout; print(os.getuid())")
    confined["spec"]["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    nothing = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    confined["spec"]["containers"][0]["securityContext"] = nothing
    create(cluster, namespace, confined)
    until(lambda: phase(cluster, namespace, "confined") in ("Succeeded", "Failed"), "the pod has run")
    assert cluster.kubectl("logs", "confined", f"--namespace={namespace}") == "10001\n"


def test_a_network_policy_denies_and_a_label_allows_again(cluster: Cluster, namespace: str, pair: tuple[str, str]) -> None:
    address, _ = pair
    assert ask(cluster, namespace, "asker", address) == "server"
    only_friends = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "only-friends"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "server"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"friend": "yes"}}}]}],
        },
    }
    create(cluster, namespace, only_friends)
    until(lambda: not ask(cluster, namespace, "asker", address), "the policy denies")
    cluster.kubectl("label", "pod", "asker", "friend=yes", f"--namespace={namespace}")
    assert until(lambda: ask(cluster, namespace, "asker", address), "the policy allows a friend") == "server"


def test_a_claim_is_one_folder_on_both_nodes(cluster: Cluster, namespace: str) -> None:
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}
    write = "import time; open('/shared/note', 'w').write('hello'); time.sleep(3600)"
    read = "import pathlib, time\nwhile not pathlib.Path('/shared/note').exists(): time.sleep(0.1)\nprint(open('/shared/note').read())"
    pods = [python_pod("writer", write, node="n0"), python_pod("reader", read, node="n1")]
    for pod in pods:
        pod["spec"]["volumes"].append(volume)
        pod["spec"]["containers"][0]["volumeMounts"] = [*pod["spec"]["containers"][0]["volumeMounts"], {"name": "shared", "mountPath": "/shared"}]
    create(cluster, namespace, claim("shared"), *pods)
    until(lambda: phase(cluster, namespace, "reader") == "Succeeded", "the reader has read")
    assert cluster.kubectl("logs", "reader", f"--namespace={namespace}") == "hello\n"


def test_an_unplugged_node_goes_on_unreached_until_it_is_plugged_in(cluster: Cluster, namespace: str, pair: tuple[str, str]) -> None:
    address, _ = pair
    cluster.unplug(1)
    try:
        with pytest.raises(RuntimeError, match=r"timed out|unreachable|No route"):
            cluster.exec_in_node(1, sys.executable, "-c", ASK, address)
        assert cluster.exec_in_node(0, sys.executable, "-c", ASK, address).strip() == "server"
    finally:
        cluster.plug_in(1)
    assert until(lambda: ask(cluster, namespace, "asker", address), "the pod went on") == "server"
    (asker,) = wait_ready(cluster, namespace, "asker")
    assert asker["status"]["containerStatuses"][0]["restartCount"] == 0


@pytest.mark.timeout(400)
def test_a_node_without_power_is_missed_its_pods_are_evicted_and_it_comes_back(cluster: Cluster, namespace: str) -> None:
    brief = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    lost = [{"key": f"node.kubernetes.io/{taint}", **brief} for taint in ("not-ready", "unreachable")]
    create(cluster, namespace, python_pod("stays", SLEEPER, node="n0"), python_pod("goes", SLEEPER, node="n1", tolerations=lost))
    wait_ready(cluster, namespace, "stays", "goes")
    cluster.stop_node(1)
    try:
        until(lambda: readiness(cluster, "n1") == "Unknown", "n1 is not ready")
        until(lambda: "deletionTimestamp" in cluster.get("pod", "goes", f"--namespace={namespace}")["metadata"], "its pod is evicted")
        assert readiness(cluster, "n0") == "True"
        assert "deletionTimestamp" not in cluster.get("pod", "stays", f"--namespace={namespace}")["metadata"]
    finally:
        cluster.start_node(1)
    cluster.kubectl("wait", "--for=delete", "pod/goes", "--timeout=90s", f"--namespace={namespace}")
    create(cluster, namespace, python_pod("again", SERVER, node="n1"))
    (again,) = wait_ready(cluster, namespace, "again")
    create(cluster, namespace, python_pod("asker", SLEEPER, node="n0"))
    wait_ready(cluster, namespace, "asker")
    assert until(lambda: ask(cluster, namespace, "asker", again["status"]["podIP"]), "the node's new pod is reached") == "again"


def readiness(cluster: Cluster, node: str) -> str:
    conditions = cluster.get("node", node)["status"]["conditions"]
    return next(str(condition["status"]) for condition in conditions if condition["type"] == "Ready")


def test_pods_outlive_the_api_server_and_etcd_forgets_nothing(cluster: Cluster, namespace: str, pair: tuple[str, str]) -> None:
    address, _ = pair
    cluster.stop_api_server()
    try:
        assert cluster.exec_in_node(1, sys.executable, "-c", ASK, address).strip() == "server"
        with pytest.raises(KubectlFailed):
            cluster.kubectl("get", "nodes", "--request-timeout=2s")
    finally:
        cluster.start_api_server()
    cluster.restart_etcd()
    until(lambda: ask(cluster, namespace, "asker", address), "everything goes on")
    assert len(cluster.get("pods", f"--namespace={namespace}")["items"]) == 2

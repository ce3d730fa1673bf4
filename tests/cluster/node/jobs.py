"""A job on the test cluster: the operator in a pod, and a manifest whose pods run this repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.archives import HOST, ROOT, host_template
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import FIRST_SERVICE
from tests.cluster.pods import create, python_pod, wait_ready

ACCOUNT = "tidemill-operator"
TINY = ROOT / "examples" / "tiny" / "rljob.yaml"


def start_operator(cluster: Cluster, namespace: str, **config: Any) -> None:
    """An operator in a pod of this namespace. It has the cluster administrator's rights: what the chart grants it is tested with the chart."""
    cluster.kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={namespace}")
    cluster.kubectl("create", "clusterrolebinding", f"{namespace}-operator", "--clusterrole=cluster-admin", f"--serviceaccount={namespace}:{ACCOUNT}")
    document = {
        "images": {"conductor": HOST, "cell": HOST, "sandbox": HOST},
        "imagePullPolicy": "Never",
        "namespaces": [namespace],
        "operatorNamespace": namespace,
        "lease": {"name": "leader", "durationSeconds": 4, "renewSeconds": 2.5, "retrySeconds": 0.5},
        **config,
    }
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ACCOUNT}, "data": {"operator.yaml": yaml.safe_dump(document)}}
    api_server = {"ip": FIRST_SERVICE, "hostnames": ["kubernetes.default.svc"]}  # kopf goes by its name, and there is no name server here
    pod = python_pod(ACCOUNT, "", serviceAccountName=ACCOUNT, automountServiceAccountToken=True, restartPolicy="Always", hostAliases=[api_server])
    (main,) = pod["spec"]["containers"]
    main["command"] = ["python", "-m", "tidemill_operator", "--config", "/etc/tidemill/operator.yaml"]
    main["env"] = [{"name": "TIDEMILL_TOKEN_FILE", "value": "/var/run/tidemill/token/token"}]
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "tidemill.dev"}}]}}
    for name, place, volume in (("settings", "/etc/tidemill", {"configMap": {"name": ACCOUNT}}), ("token", "/var/run/tidemill/token", token)):
        pod["spec"]["volumes"].append({"name": name, **volume})
        main["volumeMounts"].append({"name": name, "mountPath": place, "readOnly": True})
    create(cluster, namespace, settings, pod)
    wait_ready(cluster, namespace, ACCOUNT)


def submit(cluster: Cluster, namespace: str, job: dict[str, Any]) -> None:
    cluster.kubectl("apply", f"--namespace={namespace}", "--filename=-", input=json.dumps(job))


def manifest(source: Path = TINY) -> dict[str, Any]:
    """An example's job, its tasks from this repository, its pods with this machine's Python."""
    job: dict[str, Any] = yaml.safe_load(source.read_text())
    spec = job["spec"]
    scheme, _, place = spec["tasks"]["source"].partition(":")
    if scheme == "path":
        spec["tasks"]["source"] = f"path:{(source.parent / place).resolve()}"
    for part, container in (("conductor", "conductor"), ("gateway", "gateway"), ("cells", "cell")):
        spec[part] = {**spec.get(part, {}), "template": host_template(container, init_containers=() if part == "conductor" else ("model",))}
    return job

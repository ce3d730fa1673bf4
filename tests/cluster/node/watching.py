"""A Prometheus on the test cluster as a user has it: in a namespace of its own, with an account that finds pods, let in by network policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.node.installation import MONITORING, NAMESPACE, RELEASE
from tests.cluster.node.monitors import scrape_configs
from tests.cluster.pods import create, python_pod, wait_ready
from tests.helm.chart import only, render
from tests.scraping import Prometheus

INTERVAL_SECONDS = 3.0
"""Pages of engines are long, and the cores are the job's."""

_EVERY = {"enabled": True, "interval": f"{INTERVAL_SECONDS:g}s"}
_VALUES: dict[str, Any] = {"podMonitor": _EVERY, "serviceMonitor": _EVERY, "prometheusRule": {"enabled": True}}
_NAME, _PORT = "prometheus", 9090
_CONFIGURATION, _DATA = "/etc/prometheus", "/prometheus"


@contextmanager
def watching(cluster: Cluster) -> Iterator[Prometheus]:
    """It scrapes what the chart's monitors select and evaluates the chart's rules, as long as the block lasts."""
    cluster.make_namespace(MONITORING)
    try:
        create(cluster, MONITORING, *_rights(), _configuration(), _pod(cluster.control_plane.programs["prometheus"]))
        (pod,) = wait_ready(cluster, MONITORING, _NAME)
        yield Prometheus(f"http://127.0.0.1:{cluster.forward(pod['status']['podIP'], _PORT)}")
    finally:
        cluster.delete_namespace(MONITORING)


def _rights() -> tuple[dict[str, Any], ...]:
    verbs = ["get", "list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["pods", "services"], "verbs": verbs},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
    ]
    group = "rbac.authorization.k8s.io"
    return (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _NAME}},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": _NAME}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _NAME},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": _NAME},
            "subjects": [{"kind": "ServiceAccount", "name": _NAME, "namespace": MONITORING}],
        },
    )


def _configuration() -> dict[str, Any]:
    manifests = render(_VALUES, RELEASE, NAMESPACE)
    settings = {
        "global": {"evaluation_interval": f"{INTERVAL_SECONDS:g}s"},
        "rule_files": [f"{_CONFIGURATION}/rules.yaml"],
        "scrape_configs": scrape_configs(manifests),
    }
    data = {"prometheus.yaml": yaml.safe_dump(settings), "rules.yaml": yaml.safe_dump(only(manifests, "PrometheusRule")["spec"])}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _NAME}, "data": data}


def _pod(program: str) -> dict[str, Any]:
    pod = python_pod(_NAME, "", serviceAccountName=_NAME, automountServiceAccountToken=True)
    (main,) = pod["spec"]["containers"]
    main["command"] = [program, f"--config.file={_CONFIGURATION}/prometheus.yaml", f"--storage.tsdb.path={_DATA}", "--log.level=warn"]
    main["readinessProbe"] = {"httpGet": {"path": "/-/ready", "port": _PORT}, "periodSeconds": 1}
    folder = str(Path(program).parent)
    places: dict[str, tuple[str, dict[str, Any]]] = {
        "configuration": (_CONFIGURATION, {"configMap": {"name": _NAME}}),
        "data": (_DATA, {"emptyDir": {}}),
        "program": (folder, {"hostPath": {"path": folder, "type": "Directory"}}),
    }
    for name, (place, volume) in places.items():
        pod["spec"]["volumes"].append({"name": name, **volume})
        main["volumeMounts"].append({"name": name, "mountPath": place})
    return pod

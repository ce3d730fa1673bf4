"""The product on a test cluster as a user installs it: images that were built, the chart, the real Helm."""

from __future__ import annotations

import time
from typing import Any

from tests.cluster.archives import HOST
from tests.cluster.cluster import Cluster
from tests.cluster.node.images import image
from tests.helm.chart import CHART, helm

RELEASE, NAMESPACE = "tidemill", "tidemill-system"
OPERATOR = f"{RELEASE}-operator"
"""Of its Deployment, its account and its lease."""

MONITORING = "monitoring"
"""The namespace from which jobs are scraped."""

NODE_LOSS_SECONDS = 15


def install(cluster: Cluster) -> None:
    """Two operators, ready. Cells run in the image HOST, into which a job's template mounts this machine's Python: their own takes 6 GB."""
    images = {name: image(name) for name in ("operator", "conductor", "sandbox")}
    for built in images.values():
        cluster.import_image(built.archive)
    values: dict[str, Any] = {
        "images": {**{name: built.tag for name, built in images.items()}, "cell": HOST},
        "imagePullPolicy": "Never",
        "metricsFrom": [MONITORING],
        "nodeLossSeconds": NODE_LOSS_SECONDS,
        "defaults": {"terminationGracePeriodSeconds": 20},
    }
    began = time.monotonic()
    # The definitions are there already: the cluster of the tests starts with them.
    adopt = ("--take-ownership", "--force-conflicts")
    run_helm(cluster, "install", RELEASE, str(CHART), "--create-namespace", "--wait", "--timeout=180s", *adopt, values=values)
    print(f"installed in {time.monotonic() - began:.0f} s")


def run_helm(cluster: Cluster, verb: str, *arguments: str, values: dict[str, Any] | None = None) -> str:
    return helm(verb, *arguments, f"--namespace={NAMESPACE}", values=values, kubeconfig=cluster.kubeconfig)

"""Plain pods of the tests: this machine's Python in a pod, found by what it does."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.cluster.api_server import ApiServer
from tests.cluster.archives import HOST, host_template

_SECONDS = 90
_POLL_SECONDS = 0.2


def python_pod(name: str, code: str, *, node: str = "", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod that runs Python code; further fields of its `spec` as named."""
    template = host_template("main")["spec"]
    (main,) = template["containers"]
    main |= {
        "image": HOST,
        "imagePullPolicy": "Never",
        "command": [sys.executable, "-u", "-c", code],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    placed = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    fixed = {"restartPolicy": "Never", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, **(labels or {})}},
        "spec": {**fixed, **template, **placed, **spec},
    }


def create(server: ApiServer, namespace: str, *objects: dict[str, Any]) -> None:
    server.kubectl(
        "apply", f"--namespace={namespace}", "--filename=-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    )


def wait_ready(server: ApiServer, namespace: str, *pods: str) -> list[dict[str, Any]]:
    """Wait until the pods are ready; what they are then."""
    server.kubectl("wait", "--for=condition=Ready", f"--timeout={_SECONDS}s", f"--namespace={namespace}", *(f"pod/{pod}" for pod in pods))
    return [server.get("pod", pod, f"--namespace={namespace}") for pod in pods]


def until[T](look: Callable[[], T], what: str, seconds: float = _SECONDS) -> T:
    """What `look` finds, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"within {seconds:.0f} s not so: {what}"
        time.sleep(_POLL_SECONDS)
    return found

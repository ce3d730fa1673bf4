"""The conductor's objects: one pod that keeps its identity and its volume, and a Service whose address everybody knows."""

from __future__ import annotations

from tidemill_operator import names, pods
from tidemill_operator.names import Manifest
from tidemill_operator.pods import Context

COMPONENT = "conductor"


def service(context: Context) -> Manifest:
    name = names.conductor(context.name)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": context.meta(name, COMPONENT),
        "spec": {
            "selector": {names.JOB: context.name, names.COMPONENT: COMPONENT},
            "ports": [{"name": "http", "port": names.CONDUCTOR_PORT, "protocol": "TCP"}],
            "publishNotReadyAddresses": True,
        },
    }


def stateful_set(context: Context, replicas: int) -> Manifest:
    storage = context.job.spec.conductor.storage
    return pods.stateful_set(context, COMPONENT, replicas, names.conductor(context.name), template(context), storage)


def template(context: Context) -> Manifest:
    program = ["python", "-m", "tidemill_rollout.conductor", "--manifest", pods.MANIFEST, "--workdir", pods.WORK, "--host", "0.0.0.0"]
    program += ["--port", str(names.CONDUCTOR_PORT), "--gateway-url", context.gateway_url]
    program += ["--sandboxes", "pods", "--sandbox-config", pods.SANDBOX_CONFIG]
    mounts = [*pods.common_mounts(), {"name": "api", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}]
    fragment = context.job.spec.conductor.template
    return pods.process(context, COMPONENT, program, names.CONDUCTOR_PORT, fragment, mounts, volumes=(pods.api_token_volume(),))

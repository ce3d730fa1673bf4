"""The gateway's objects: pods with stable names, and a Service for each of them."""

from __future__ import annotations

from tidemill_operator import names, pods
from tidemill_operator.names import Manifest
from tidemill_operator.pods import Context

COMPONENT = "gateway"


def service(context: Context, shard: int) -> Manifest:
    name = names.gateway_shard(context.name, shard)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": context.meta(name, COMPONENT),
        "spec": {
            "selector": {names.JOB: context.name, "statefulset.kubernetes.io/pod-name": name},
            "ports": [{"name": "http", "port": names.GATEWAY_PORT, "protocol": "TCP"}],
            "publishNotReadyAddresses": True,
        },
    }


def stateful_set(context: Context, replicas: int) -> Manifest:
    """With a volume: what harnesses have been answered is known nowhere else until their executions end."""
    service, storage = names.gateway_shard(context.name, 0), context.job.spec.gateway.storage
    return pods.stateful_set(context, COMPONENT, replicas, service, template(context), storage, podManagementPolicy="Parallel")


def template(context: Context) -> Manifest:
    program = ["python", "-m", "tidemill_rollout.gateway", "--manifest", pods.MANIFEST, "--workdir", pods.WORK, "--host", "0.0.0.0"]
    program += ["--port", str(names.GATEWAY_PORT), "--conductor-url", context.conductor_url, "--model", pods.MODEL]
    variables: tuple[Manifest, ...] = ()
    if len(context.gateway_ips) > 1:
        program += ["--gateway-url", context.gateway_url, "--number", "$(GATEWAY_NUMBER)"]
        variables = (pods.from_field("GATEWAY_NUMBER", "metadata.labels['apps.kubernetes.io/pod-index']"),)
    mounts = pods.common_mounts(checkpoints_read_only=True)
    model = pods.model_container(context, context.config.images.conductor, mounts, wait=True)
    return pods.process(
        context, COMPONENT, program, names.GATEWAY_PORT, context.job.spec.gateway.template, mounts, init=(model,), variables=variables
    )

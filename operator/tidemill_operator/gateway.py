"""The gateway's objects: pods with stable names, and a Service for each of them."""

from __future__ import annotations

from tidemill_operator import names, pods
from tidemill_operator.names import Manifest
from tidemill_operator.pods import Context
from tidemill_operator.template import merged

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
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": context.meta(names.gateway(context.name), COMPONENT),
        "spec": {
            "replicas": replicas,
            "serviceName": names.gateway_shard(context.name, 0),
            "selector": {"matchLabels": {names.JOB: context.name, names.COMPONENT: COMPONENT}},
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            "template": template(context),
            # What harnesses have been answered is known nowhere else until their executions end.
            "volumeClaimTemplates": [pods.work_claim(context, COMPONENT, context.job.spec.gateway.storage)],
        },
    }


def template(context: Context) -> Manifest:
    mounts = pods.common_mounts(checkpoints_read_only=True)
    image = context.config.images.conductor
    command = ["python", "-m", "tidemill_rollout.gateway", "--manifest", pods.MANIFEST, "--workdir", pods.WORK, "--host", "0.0.0.0"]
    command += ["--port", str(names.GATEWAY_PORT), "--conductor-url", context.conductor_url, "--model", pods.MODEL]
    main = pods.container(
        context,
        COMPONENT,
        image,
        command,
        mounts,
        ports=[{"name": "http", "containerPort": names.GATEWAY_PORT, "protocol": "TCP"}],
        resources=pods.SMALL,
        startupProbe=pods.probe("/healthz", names.GATEWAY_PORT, period_seconds=2, failures=150),
        livenessProbe=pods.probe("/healthz", names.GATEWAY_PORT, period_seconds=10, failures=6),
        readinessProbe=pods.probe("/healthz", names.GATEWAY_PORT, period_seconds=5, failures=2),
    )
    built = {
        "metadata": pods.pod_meta(context, COMPONENT),
        "spec": pods.pod_spec(
            context,
            names.gateway(context.name),
            [main],
            pods.common_volumes(context),
            [pods.model_container(context, image, mounts, wait=True)],
        ),
    }
    return merged(built, context.job.spec.gateway.template, "spec.gateway.template")

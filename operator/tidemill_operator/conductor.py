"""The conductor's objects: one pod that keeps its identity and its volume, and a Service whose address everybody knows."""

from __future__ import annotations

from tidemill_operator import names, pods
from tidemill_operator.names import Manifest
from tidemill_operator.pods import Context
from tidemill_operator.template import merged

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
    name = names.conductor(context.name)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": context.meta(name, COMPONENT),
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "selector": {"matchLabels": {names.JOB: context.name, names.COMPONENT: COMPONENT}},
            # A new operator may build pods differently; running jobs are not restarted for that.
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            "template": template(context),
            "volumeClaimTemplates": [pods.work_claim(context, COMPONENT, context.job.spec.conductor.storage)],
        },
    }


def template(context: Context) -> Manifest:
    mounts = pods.common_mounts()
    image = context.config.images.conductor
    command = ["python", "-m", "tidemill_rollout.conductor", "--manifest", pods.MANIFEST, "--workdir", pods.WORK, "--host", "0.0.0.0"]
    command += ["--port", str(names.CONDUCTOR_PORT), "--gateway-url", context.gateway_url]
    command += ["--sandboxes", "pods", "--sandbox-config", pods.SANDBOX_CONFIG]
    main = pods.container(
        context,
        COMPONENT,
        image,
        command,
        [*mounts, {"name": "api", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}],
        ports=[{"name": "http", "containerPort": names.CONDUCTOR_PORT, "protocol": "TCP"}],
        resources=pods.SMALL,
        startupProbe=pods.probe("/healthz", names.CONDUCTOR_PORT, period_seconds=2, failures=150),
        livenessProbe=pods.probe("/healthz", names.CONDUCTOR_PORT, period_seconds=10, failures=6),
        readinessProbe=pods.probe("/healthz", names.CONDUCTOR_PORT, period_seconds=5, failures=2),
    )
    built = {
        "metadata": pods.pod_meta(context, COMPONENT),
        "spec": pods.pod_spec(
            context,
            names.conductor(context.name),
            [main],
            [*pods.common_volumes(context), pods.api_token_volume()],
            [],
        ),
    }
    return merged(built, context.job.spec.conductor.template, "spec.conductor.template")

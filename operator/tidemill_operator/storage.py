"""What the job's processes read and keep: the manifest and the trust they mount, the volume of checkpoints."""

from __future__ import annotations

import base64
import gzip
import json

from tidemill.api.model import API_VERSION
from tidemill_operator import names
from tidemill_operator.names import Manifest
from tidemill_operator.pods import Context

HISTORY_BYTES = 900_000
"""A ConfigMap takes 1 MiB; base64 is counted before encoding."""


def config_map(context: Context, trust: str, addresses: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**context.meta(context.name, "conductor"), "annotations": {names.ADDRESSES: addresses}},
        "data": {"job.yaml": job_yaml(context), "trust.json": trust, "sandbox.json": json.dumps(sandbox(context), indent=1, sort_keys=True)},
    }


def job_yaml(context: Context) -> str:
    """The job as the processes read it: what the user wrote and the defaults of this operator's version, but nothing that only the cluster needs."""
    document = context.job.model_dump(mode="json", by_alias=True, exclude={"status", "metadata"})
    document |= {"apiVersion": API_VERSION, "kind": "RLJob", "metadata": {"name": context.name}}
    # `suspend` is acted upon by the operator; a file that changed with it would restart nothing and mislead.
    document["spec"].pop("suspend", None)
    return json.dumps(document, indent=1, sort_keys=True)  # JSON is YAML, and written forty times faster


def sandbox(context: Context) -> Manifest:
    spec, config = context.job.spec.sandbox, context.config
    return {
        "namespace": context.namespace,
        "job": context.name,
        "image": config.images.sandbox,
        "imagePullPolicy": config.image_pull_policy,
        "imagePullSecrets": list(config.image_pull_secrets),
        "gatewayUrl": context.gateway_url,
        "template": spec.template,
        "resources": spec.resources.model_dump(mode="json", by_alias=True),
    }


def checkpoints(context: Context) -> Manifest:
    storage = context.job.spec.checkpoints.storage
    spec: Manifest = {"accessModes": [storage.access_mode], "resources": {"requests": {"storage": storage.size}}}
    if storage.class_name:
        spec["storageClassName"] = storage.class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": context.meta(names.checkpoints(context.name), "conductor"),
        "spec": spec,
    }


def history(context: Context, lines: bytes) -> Manifest:
    """The conductor's events, kept after its pod is gone. What does not fit loses its oldest half, until it does."""
    packed = gzip.compress(lines, mtime=0)
    while len(packed) > HISTORY_BYTES:
        lines = lines[lines.find(b"\n", len(lines) // 2) + 1 :]
        packed = gzip.compress(lines, mtime=0)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": context.meta(f"{context.name}-history", "conductor"),
        "binaryData": {"metrics.jsonl.gz": base64.b64encode(packed).decode()},
    }

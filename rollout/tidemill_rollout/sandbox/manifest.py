"""The pods that harnesses and evaluators run in, as Kubernetes objects. Pure.

A pod has the task's image and nothing of the cluster: no token, no service names, no name server, no rights, folders of its own with bounds.
Its files come and go through the gateway: an init container of the product's image fetches them, so that what it laid out can be shown to the
task's programs read-only, the tests among it.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tidemill.wire.shards import address_of, addresses
from tidemill_rollout.sandbox.enter import ENTRY, PLACES, SEED, UPLOAD_SECONDS
from tidemill_rollout.sandbox.template import Manifest, merged

UID = 1000
"""Not 0: some agents refuse to run as root, and the namespace may."""

START_SECONDS = 300.0
"""For a pod to be placed and its images to be pulled."""

GRACE_SECONDS = 5

STORAGE = "2Gi"
"""Of the node's disk, everything together. Above `enter.py`'s own bound, which stops a harness and keeps its work; the kubelet's evicts the pod."""

_SIZES = {"app": "1536Mi", "logs": "512Mi", "tmp": "1Gi", "entry": "16Mi", "harness": "64Mi", "tests": "512Mi"}
_CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}


class Size(msgspec.Struct, frozen=True):
    cpu: str = "500m"
    memory: str = "512Mi"


class PodSettings(msgspec.Struct, frozen=True, rename="camel"):
    """`sandbox.json`, as the operator writes it."""

    namespace: str
    job: str
    image: str
    gateway_url: str
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    template: dict[str, Any] = {}
    resources: Size = Size()


@dataclass(frozen=True, slots=True)
class Owner:
    """The conductor's pod. When it is deleted, the cluster deletes its sandboxes."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Errand:
    """What one pod is for."""

    component: Literal["sandbox", "evaluator"]
    execution: str
    attempt: int
    run: str  # tells this pod from one of the same name that an earlier process made
    door: str  # the execution's name at the gateway
    key: str
    seconds: float
    image: str = ""  # the task's or the harness's; empty: the product's
    seeded: bool = False  # the image has files of the task in its work folder


def labels(job: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "tidemill", "tidemill.dev/job": job}


def selector(job: str) -> str:
    return f"tidemill.dev/job={job},tidemill.dev/component in (sandbox,evaluator)"


def pod_name(job: str, errand: Errand) -> str:
    """The same for the same attempt, so that creating it twice makes one."""
    whole = f"{job}-{errand.execution}-{errand.attempt}" + ("-evaluator" if errand.component == "evaluator" else "")
    plain = re.sub(r"[^a-z0-9-]+", "-", whole.lower()).strip("-")
    if plain == whole and len(whole) <= 63:
        return whole
    return f"{plain[:50].rstrip('-')}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"


def harness_pod(settings: PodSettings, owner: Owner | None, errand: Errand) -> Manifest:
    """The whole pod.

    Raises:
        SandboxRefused: the job's template would open it.
    """
    metadata: Manifest = {
        "name": pod_name(settings.job, errand),
        "namespace": settings.namespace,
        "labels": {
            **labels(settings.job),
            "tidemill.dev/component": errand.component,
            "tidemill.dev/execution": errand.execution,
            "tidemill.dev/attempt": str(errand.attempt),
            "tidemill.dev/run": errand.run,
        },
    }
    if owner is not None:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid}]
    return merged({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec(settings, errand)}, settings.template)


def _spec(settings: PodSettings, errand: Errand) -> Manifest:
    folders = ["app", "logs", "tmp", "entry", "harness", *(["tests"] if errand.component == "evaluator" else [])]
    spec: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "activeDeadlineSeconds": math.ceil(START_SECONDS + errand.seconds + UPLOAD_SECONDS),
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},  # one must be named; nobody answers there
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # A lost node is noticed after this long: the execution begins anew elsewhere.
        "tolerations": [
            {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
            for taint in ("not-ready", "unreachable")
        ],
        "volumes": [{"name": name, "emptyDir": {"sizeLimit": _SIZES[name]}} for name in folders],
        "initContainers": _init_containers(settings, errand, folders),
        "containers": [_work(settings, errand, folders)],
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return spec


def _init_containers(settings: PodSettings, errand: Errand, folders: list[str]) -> list[Manifest]:
    door = _door(settings, errand)
    door.append({"name": "TIDEMILL_SANDBOX_SECONDS", "value": f"{errand.seconds:g}"})
    command = ["python", "-m", "tidemill_rollout.sandbox.prepare"]
    prepare = _container("prepare", settings, settings.image, command, door, [_mount(name) for name in folders])
    if not errand.seeded:
        return [prepare]
    mounts = [{"name": "app", "mountPath": SEED}, _mount("tmp"), _mount("entry", read_only=True)]
    seed = _container("seed", settings, errand.image, ["python3", "-I", "-S", f"{ENTRY}/enter.py", "seed"], [], mounts)
    return [prepare, seed]


def _work(settings: PodSettings, errand: Errand, folders: list[str]) -> Manifest:
    mounts = [_mount(name, read_only=name in ("entry", "harness", "tests")) for name in folders]
    command = ["python3", "-I", "-S", f"{ENTRY}/enter.py", "work"]
    return _container("sandbox", settings, errand.image or settings.image, command, _door(settings, errand), mounts)


def _container(name: str, settings: PodSettings, image: str, command: list[str], env: list[Manifest], mounts: list[Manifest]) -> Manifest:
    amounts = {"cpu": settings.resources.cpu, "memory": settings.resources.memory, "ephemeral-storage": STORAGE}
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": command,
        "workingDir": "/tmp",
        "env": env,
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "securityContext": dict(_CONFINED),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _door(settings: PodSettings, errand: Errand) -> list[Manifest]:
    """The only way out, and the key to it."""
    return [
        {"name": "TIDEMILL_SANDBOX_URL", "value": f"{address_of(errand.door, addresses(settings.gateway_url))}/x/{errand.door}"},
        {"name": "TIDEMILL_SANDBOX_KEY", "value": errand.key},
    ]


def _mount(name: str, read_only: bool = False) -> Manifest:
    path = {"tmp": "/tmp", "entry": ENTRY, "harness": PLACES["run/harness"]}.get(name) or PLACES[name]
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}

"""What the product's pods share: accounts, volumes, security, the init container that puts the model in place."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.api.rljob import RLJob
from tidemill_operator import names
from tidemill_operator.config import OperatorConfig
from tidemill_operator.names import Manifest
from tidemill_operator.template import merged

MANIFEST = "/etc/tidemill/job/job.yaml"
SANDBOX_CONFIG = "/etc/tidemill/job/sandbox.json"
WORK = "/work"
CLAIMS = "/work/claims"
MODEL = "/work/checkpoints/model"
USER = 10001
AUDIENCE = "tidemill.dev"
TOKEN_SECONDS = 3600
SMALL = {"requests": {"cpu": "250m", "memory": "512Mi"}}
"""Of conductor and gateway; a template may ask for more. A pod that asks for nothing gets next to nothing on a busy node, and is evicted first."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the builders of one job's objects know."""

    job: RLJob
    namespace: str
    uid: str
    config: OperatorConfig
    conductor_ip: str = ""
    gateway_ips: tuple[str, ...] = ("",)  # by the gateways' numbers
    gangs: bool = False

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def owner(self) -> Manifest:
        return names.owner("RLJob", self.name, self.uid)

    @property
    def conductor_url(self) -> str:
        return f"http://{_host(self.conductor_ip)}:{names.CONDUCTOR_PORT}"

    @property
    def gateway_url(self) -> str:
        """Of several: all of them, with commas between. Which one an execution belongs to, everybody computes."""
        return ",".join(f"http://{_host(address)}:{names.GATEWAY_PORT}" for address in self.gateway_ips)

    def meta(self, name: str, component: str, owner: Manifest | None = None, **labels: str) -> Manifest:
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": names.labels(self.name, component, **labels),
            "ownerReferences": [owner or self.owner],
        }


def pod_spec(context: Context, account: str, containers: list[Manifest], volumes: list[Manifest], init: list[Manifest]) -> Manifest:
    config = context.config
    spec: Manifest = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": config.defaults.termination_grace_period_seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # A lost node is the operator's business (nodeLossSeconds); without these the API server would add 300 s of its own.
        "tolerations": [
            {"key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": int(config.node_loss_seconds)}
            for trouble in ("not-ready", "unreachable")
        ],
        "initContainers": init,
        "containers": containers,
        "volumes": volumes,
    }
    if config.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in config.image_pull_secrets]
    return spec


def pod_meta(context: Context, component: str, **labels: str) -> Manifest:
    """An autoscaler that tidies up does not move these pods; a person who drains a node does."""
    return {
        "labels": names.labels(context.name, component, **labels),
        "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    }


def container(context: Context, name: str, image: str, program: list[str], mounts: list[Manifest], **more: object) -> Manifest:
    """`program` runs under the image's entry point: in a cell's image that is the init process."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": context.config.image_pull_policy,
        "args": program,
        "env": environment(),
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **more,
    }


def stateful_set(context: Context, component: str, replicas: int, service: str, template: Manifest, storage: str, **more: object) -> Manifest:
    """Pods that keep their identity and a volume."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": context.meta(f"{context.name}-{component}", component),
        "spec": {
            "replicas": replicas,
            "serviceName": service,
            "selector": {"matchLabels": {names.JOB: context.name, names.COMPONENT: component}},
            # A new operator may build pods differently; running jobs are not restarted for that.
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            "template": template,
            "volumeClaimTemplates": [_work_claim(context, component, storage)],
            **more,
        },
    }


def process(
    context: Context,
    component: str,
    program: list[str],
    port: int,
    fragment: Manifest,
    mounts: list[Manifest],
    volumes: tuple[Manifest, ...] = (),
    init: tuple[Manifest, ...] = (),
    variables: tuple[Manifest, ...] = (),
) -> Manifest:
    """The pod template of a process without GPUs that serves HTTP: the conductor, a gateway. `fragment` is the job's own part of it.

    Raises:
        template.Refused: it takes away what the product needs.
    """
    main = container(
        context,
        component,
        context.config.images.conductor,
        program,
        mounts,
        ports=[{"name": "http", "containerPort": port, "protocol": "TCP"}],
        resources=SMALL,
        startupProbe=probe("/healthz", port, period_seconds=2, failures=150),
        livenessProbe=probe("/healthz", port, period_seconds=10, failures=6),
        readinessProbe=probe("/healthz", port, period_seconds=5, failures=2),
    )
    main["env"] = [*main["env"], *variables]
    spec = pod_spec(context, f"{context.name}-{component}", [main], [*common_volumes(context), *volumes], list(init))
    return merged({"metadata": pod_meta(context, component), "spec": spec}, fragment, f"spec.{component}.template")


def from_field(name: str, field: str) -> Manifest:
    """A variable with what the pod is."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}


def environment() -> list[Manifest]:
    return [
        from_field("POD_NAME", "metadata.name"),
        from_field("POD_UID", "metadata.uid"),
        from_field("POD_NAMESPACE", "metadata.namespace"),
        from_field("POD_IP", "status.podIP"),
        {"name": "TIDEMILL_TOKEN_FILE", "value": "/var/run/tidemill/token/token"},
        {"name": "TIDEMILL_TRUST", "value": "/etc/tidemill/job/trust.json"},
        {"name": "HOME", "value": "/tmp"},
    ]


def model_container(context: Context, image: str, mounts: list[Manifest], *, wait: bool = False) -> Manifest:
    """Puts the model on the shared volume; the first cell does the work. `wait`: until it is there, in a pod that could not make every model."""
    program = ["python", "-m", "tidemill_rollout.model", "--manifest", MANIFEST, "--into", MODEL]
    return container(context, "model", image, [*program, "--wait"] if wait else program, mounts)


def model_claim(source: str) -> str:
    """The claim that holds the initial model, where it comes from one: `pvc:NAME/folder`."""
    kind, _, rest = source.partition(":")
    return rest.partition("/")[0] if kind == "pvc" else ""


def common_volumes(context: Context) -> list[Manifest]:
    return [
        {"name": "job", "configMap": {"name": context.name}},
        {
            "name": "token",
            "projected": {"sources": [{"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}}]},
        },
        {"name": "tmp", "emptyDir": {}},
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": names.checkpoints(context.name)}},
    ]


def common_mounts(*, checkpoints_read_only: bool = False) -> list[Manifest]:
    checkpoints: Manifest = {"name": "checkpoints", "mountPath": f"{WORK}/checkpoints"}
    return [
        {"name": "job", "mountPath": "/etc/tidemill/job", "readOnly": True},
        {"name": "token", "mountPath": "/var/run/tidemill/token", "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "work", "mountPath": WORK},
        {**checkpoints, "readOnly": True} if checkpoints_read_only else checkpoints,
    ]


def api_token_volume() -> Manifest:
    """What kubelet would mount by itself: here only the conductor gets it, because only the conductor makes pods."""
    return {
        "name": "api",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
            ]
        },
    }


def probe(path: str, port: int, *, period_seconds: int, failures: int) -> Manifest:
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": period_seconds, "timeoutSeconds": 5, "failureThreshold": failures}


def _work_claim(context: Context, component: str, size: str) -> Manifest:
    """The volume `work` of a StatefulSet's pods: it outlives each of them, and goes with the StatefulSet."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "work", "labels": names.labels(context.name, component)},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, "volumeMode": "Filesystem"},
    }


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address

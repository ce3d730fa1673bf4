"""What an installation tells the operator: one YAML file, checked strictly, written by the chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from tidemill.api.model import Model

Seconds = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Images(Model):
    conductor: str = Field(min_length=1, description="Image of the conductor and the gateway.")
    cell: str = Field(min_length=1, description="Image of the cells: agent, engine and trainer.")
    sandbox: str = Field(min_length=1, description="Image of sandboxes whose task names none.")


class LeaseConfig(Model):
    name: str = Field("tidemill-operator", description="Name of the Lease by which one of several operators leads.")
    duration_seconds: Seconds = Field(15, description="How long a leader that no longer renews is waited for.")
    renew_seconds: Seconds = Field(10, description="A leader that could not renew for this long stops everything it does.")
    retry_seconds: Seconds = Field(2, description="Time between two attempts to take or renew.")


class NetworkProfileConfig(Model):
    """What one RDMA network asks of a pod."""

    resources: dict[str, str] = Field({}, description="Extended resources, e.g. rdma/rdma_shared_device_a: 1.")
    annotations: dict[str, str] = Field({}, description="Annotations of the pod, e.g. k8s.v1.cni.cncf.io/networks.")
    claims: tuple[dict[str, Any], ...] = Field((), description="Entries of spec.resourceClaims; the cell's container uses each of them.")
    capabilities: tuple[str, ...] = Field((), description="Capabilities of the cell's container, e.g. IPC_LOCK.")
    env: dict[str, str] = Field({}, description="Environment of the cell's container, e.g. NCCL_IB_HCA.")
    host_network: bool = Field(False, description="The pod uses the node's network.")


class Defaults(Model):
    termination_grace_period_seconds: Annotated[int, Field(ge=1)] = Field(60, description="Time a pod has to hand over its calls.")


class OperatorConfig(Model):
    images: Images = Field(description="Images of a job's pods.")
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field("IfNotPresent", description="When images are pulled.")
    image_pull_secrets: tuple[str, ...] = Field((), description="Names of Secrets, in the job's namespace, for the registry.")
    namespaces: tuple[str, ...] = Field((), description="Namespaces that are served; empty: all.")
    operator_namespace: str = Field(min_length=1, description="Namespace of the operator itself and of its Lease.")
    operator_service_account: str = Field("tidemill-operator", description="Service account under which the operator calls conductors and agents.")
    lease: LeaseConfig = Field(LeaseConfig(), description="Election of a leader.")
    health_port: Port = Field(8080, description="Port of /healthz and /readyz.")
    metrics_port: Port = Field(8081, description="Port of /metrics.")
    metrics_from: tuple[str, ...] = Field((), description="Namespaces whose pods may reach the processes of jobs, for their metrics.")
    node_loss_seconds: Seconds = Field(60, description="Pods of a node that is away for this long are replaced.")
    placement_seconds: Seconds = Field(300, description="A cell of which some pods find no node for this long gives the others' places back.")
    network_profiles: dict[str, NetworkProfileConfig] = Field({}, description="RDMA networks by the name jobs use.")
    defaults: Defaults = Field(Defaults(), description="What jobs do not say.")
    development: bool = Field(False, description="Honours tidemill.dev/conductor-url on jobs. For tests.")


class InvalidConfig(Exception):
    """The file cannot be used; the message names each field."""


def load_config(path: Path) -> OperatorConfig:
    """Raises `InvalidConfig` with one line for each mistake."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise InvalidConfig(f"{path}: {' '.join(str(cause).split())}; give the path of the operator's YAML configuration") from cause
    if not isinstance(document, dict):
        raise InvalidConfig(f"{path}: is a {type(document).__name__}, expected a mapping with images and operatorNamespace")
    try:
        config = OperatorConfig.model_validate_json(json.dumps(document), strict=True)
    except ValidationError as cause:
        lines = (f"{path}: {'.'.join(str(p) for p in e['loc'])}: {e['msg'][0].lower()}{e['msg'][1:]}" for e in cause.errors(include_url=False))
        raise InvalidConfig("\n".join(lines)) from cause
    lease = config.lease
    if not lease.retry_seconds < lease.renew_seconds < lease.duration_seconds:
        raise InvalidConfig(
            f"{path}: lease: retrySeconds {lease.retry_seconds:g} < renewSeconds {lease.renew_seconds:g} < durationSeconds "
            f"{lease.duration_seconds:g} must hold, or two operators could lead at once; the usual values are 2, 10 and 15"
        )
    return config

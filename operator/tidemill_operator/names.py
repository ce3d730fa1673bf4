"""Names and labels of everything that belongs to a job."""

from __future__ import annotations

from typing import Any

from tidemill.api.model import API_VERSION, GROUP

MANAGER = "tidemill-operator"
"""Field manager of every write."""

MANAGED_BY = "app.kubernetes.io/managed-by"
JOB, COMPONENT, CELL, RANK = (f"{GROUP}/{word}" for word in ("job", "component", "cell", "rank"))
APPLIED = f"{GROUP}/applied"
"""Annotation with the digest of what was last applied, so that nothing is written twice."""

ADDRESSES = f"{GROUP}/addresses"
"""Annotation of the job's ConfigMap with the addresses of its Services."""

CONDUCTOR_URL = f"{GROUP}/conductor-url"
SELECTOR = f"{MANAGED_BY}=tidemill"

CONFINED = ("sandbox", "evaluator")
"""Components whose pods the conductor makes, and that nobody trusts."""

CONDUCTOR_PORT, GATEWAY_PORT, AGENT_PORT, ENGINE_PORT, TRAINER_PORT = 7000, 7001, 7002, 7003, 7004

type Manifest = dict[str, Any]


def conductor(job: str) -> str:
    return f"{job}-conductor"


def gateway(job: str) -> str:
    return f"{job}-gateway"


def gateway_shard(job: str, shard: int) -> str:
    """Name of the shard's Service, and by the StatefulSet's rule also of its pod."""
    return f"{gateway(job)}-{shard}"


def checkpoints(job: str) -> str:
    return f"{job}-checkpoints"


def cell_account(job: str) -> str:
    return f"{job}-cell"


def gpucell(job: str, cell: str) -> str:
    return f"{job}-{cell}"


def pod_of_cell(job: str, cell: str, rank: int) -> str:
    return f"{job}-{cell}-{rank}"


def cell_of(job: str, gpucell_name: str) -> str:
    """`cell-0` of `J-cell-0`: the name under which the conductor and the agent know the cell."""
    return gpucell_name.removeprefix(f"{job}-")


def labels(job: str, component: str, **more: str) -> dict[str, str]:
    return {MANAGED_BY: "tidemill", JOB: job, COMPONENT: component, **{f"{GROUP}/{key}": value for key, value in more.items()}}


def owner(kind: str, name: str, uid: str) -> Manifest:
    """No blocking of the owner's deletion: a job goes at once and takes everything with it, also when no operator runs."""
    return {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid, "controller": True, "blockOwnerDeletion": False}

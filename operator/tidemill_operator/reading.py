"""From the objects of the API server to what decisions need."""

from __future__ import annotations

from tidemill.api.loading import InvalidManifest, gpucell_of, rljob_of
from tidemill.api.rljob import RLJob
from tidemill_operator import addresses, ownership
from tidemill_operator.actions import Ref
from tidemill_operator.names import ADDRESSES, APPLIED, CELL, COMPONENT, RANK, Manifest, cell_of
from tidemill_operator.observed import Cell, Container, Job, Node, Pod, Thing
from tidemill_operator.quantity import quantity
from tidemill_operator.times import seconds

OTHERS_MAY_CHANGE = ("GPUCell", "PersistentVolumeClaim")
"""What matters of a GPUCell cannot be changed, the rest is for people; a volume may be enlarged."""


def job_of(raw: Manifest) -> Job:
    meta = raw["metadata"]
    model: RLJob | None = None
    errors: tuple[str, ...] = ()
    try:
        model = rljob_of(raw)
    except InvalidManifest as invalid:
        errors = invalid.errors
    return Job(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        created=seconds(meta.get("creationTimestamp")),
        model=model,
        errors=errors,
        status=raw.get("status") or {},
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        deleting="deletionTimestamp" in meta,
    )


def cell_view(raw: Manifest) -> Cell | None:
    """None for what is no cell by our models: somebody wrote it by hand, and it is reported, not followed."""
    meta = raw["metadata"]
    try:
        model = gpucell_of(raw)
    except InvalidManifest:
        return None
    return Cell(
        name=cell_of(model.spec.job, meta["name"]),
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        generation=meta.get("generation", 0),
        spec=model.spec,
        status=raw.get("status") or {},
        deleting="deletionTimestamp" in meta,
    )


def pod_of(raw: Manifest) -> Pod:
    meta, status = raw["metadata"], raw.get("status") or {}
    labels = meta.get("labels") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    scheduled, ready = conditions.get("PodScheduled", {}), conditions.get("Ready", {})
    unplaced = scheduled.get("status") == "False" and not raw["spec"].get("nodeName")
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        component=labels.get(COMPONENT, ""),
        cell=labels.get(CELL, ""),
        rank=int(labels[RANK]) if labels.get(RANK, "").isdigit() else 0,
        phase=status.get("phase", "Pending"),
        created=seconds(meta.get("creationTimestamp")),
        node=raw["spec"].get("nodeName") or "",
        ready=ready.get("status") == "True",
        unready_reason=ready.get("message") or ready.get("reason") or "",
        unschedulable=(scheduled.get("message") or "no node fits") if unplaced and scheduled.get("reason") == "Unschedulable" else "",
        gated=unplaced and scheduled.get("reason") == "SchedulingGated",
        deleting="deletionTimestamp" in meta,
        owner=next((str(o["uid"]) for o in meta.get("ownerReferences") or ()), ""),
        disrupted=conditions.get("DisruptionTarget", {}).get("reason", "") if conditions.get("DisruptionTarget", {}).get("status") == "True" else "",
        containers=tuple(
            _container(c, init) for init, field in ((True, "initContainerStatuses"), (False, "containerStatuses")) for c in status.get(field) or ()
        ),
    )


def _container(raw: Manifest, init: bool) -> Container:
    state, last = raw.get("state") or {}, raw.get("lastState") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    return Container(
        name=raw["name"],
        init=init,
        ready=bool(raw.get("ready")),
        restarts=raw.get("restartCount", 0),
        waiting=waiting.get("reason", ""),
        message=waiting.get("message", "") or ended.get("message", ""),
        last_exit=ended.get("reason", ""),
        exit_code=ended.get("exitCode", 0),
    )


def node_of(raw: Manifest) -> Node:
    status = raw.get("status") or {}
    ready: Manifest = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), {})
    free = status.get("allocatable") or {}
    return Node(
        name=raw["metadata"]["name"],
        ready=ready.get("status") == "True",
        since=seconds(ready.get("lastTransitionTime") or raw["metadata"].get("creationTimestamp")),  # a new node has no conditions yet
        memory_bytes=quantity(free.get("memory", "0")),
        gpus=int(quantity(free.get("nvidia.com/gpu", "0"))),
    )


def thing_of(raw: Manifest) -> Thing:
    meta = raw["metadata"]
    watched = raw["kind"] not in OTHERS_MAY_CHANGE
    return Thing(
        ref=Ref(raw["kind"], meta["namespace"], meta["name"]),
        uid=meta["uid"],
        applied=(meta.get("annotations") or {}).get(APPLIED, ""),
        deleting="deletionTimestamp" in meta,
        owner=_owner(meta),
        addresses=addresses.read((meta.get("annotations") or {}).get(ADDRESSES, "")),
        cluster_ip=(raw.get("spec") or {}).get("clusterIP", "") if raw["kind"] == "Service" else "",
        fields=ownership.managed(meta) if watched else None,
    )


def _owner(meta: Manifest) -> str:
    return next((str(o["uid"]) for o in meta.get("ownerReferences") or () if o.get("kind") == "RLJob" and o.get("controller")), "")

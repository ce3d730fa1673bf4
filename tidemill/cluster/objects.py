"""Jobs and cells as the API server keeps them, as far as commands need them.

Read leniently: what the manifest says is the operator's to judge, and an operator that is newer than this command may say more than it knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from tidemill.api.gpucell import GPUCellStatus
from tidemill.api.status import RLJobStatus
from tidemill.cluster.api import Object
from tidemill.cluster.trouble import ClusterTrouble
from tidemill.wire.cell import CellKind, Role


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    namespace: str
    mode: str
    steps: int
    suspend: bool
    deleting: bool
    status: RLJobStatus

    @property
    def ended(self) -> bool:
        return self.status.phase.terminal


@dataclass(frozen=True, slots=True)
class Cell:
    name: str  # without the job's
    object_name: str
    kind: CellKind
    ordinal: int
    generation: int
    granted_role: Role
    granted_epoch: int
    pin: Role | None
    cordon: bool
    status: GPUCellStatus


def job_of(document: Object) -> Job:
    meta, spec = document["metadata"], document.get("spec") or {}
    schedule = spec.get("schedule") or {}
    return Job(
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        mode=str(schedule.get("mode") or "Elastic"),
        steps=int(schedule.get("steps") or 0),
        suspend=bool(spec.get("suspend")),
        deleting="deletionTimestamp" in meta,
        status=_status(RLJobStatus, document),
    )


def cell_of(document: Object) -> Cell:
    meta, spec = document["metadata"], document["spec"]
    return Cell(
        name=meta["name"].removeprefix(f"{spec['job']}-"),
        object_name=meta["name"],
        kind=CellKind(spec["kind"]),
        ordinal=int(spec["ordinal"]),
        generation=int(meta.get("generation", 0)),
        granted_role=Role(spec.get("role") or Role.ROLLOUT),
        granted_epoch=int(spec.get("epoch") or 0),
        pin=Role(spec["pin"]) if spec.get("pin") else None,
        cordon=bool(spec.get("cordon")),
        status=_status(GPUCellStatus, document),
    )


def in_order(cells: list[Cell]) -> tuple[Cell, ...]:
    """The core first, standalone cells last."""
    return tuple(sorted(cells, key=lambda c: (c.kind is CellKind.STANDALONE, c.ordinal)))


def _status[M: BaseModel](model: type[M], document: dict[str, Any]) -> M:
    try:
        return model.model_validate(document.get("status") or {}, extra="ignore")
    except ValidationError as cause:
        what = f"{document.get('kind') or model.__name__.removesuffix('Status')} {document['metadata']['name']}".lower()
        first = cause.errors(include_url=False)[0]
        raise ClusterTrouble(
            f"{what}: status.{'.'.join(str(part) for part in first['loc'])} is {first['input']!r}, which this tidemill does not know; "
            "install the version that the cluster's operator has"
        ) from cause

"""What a user changes of a running job: the role of a cell, whether a cell takes part, whether the job runs. Fields of specs; the operator acts."""

from __future__ import annotations

from tidemill.api.status import JobPhase
from tidemill.cluster.api import CELLS, JOBS, Cluster
from tidemill.cluster.following import Seen
from tidemill.cluster.objects import Cell, Job
from tidemill.cluster.trouble import ClusterTrouble
from tidemill.wire.cell import CellKind, CellPhase, Role


async def pin(cluster: Cluster, job: Job, cell: Cell, role: Role | None) -> None:
    """None takes a pin back."""
    refuse_if_over(job)
    if role is Role.TRAINING and cell.kind is CellKind.STANDALONE:
        raise ClusterTrouble(f"cell {cell.name} is standalone: it only ever rolls out; choose one of the others")
    await cluster.merge(CELLS, cell.object_name, {"spec": {"pin": role.value if role else None}})


async def cordon(cluster: Cluster, job: Job, cell: Cell, wanted: bool) -> None:
    refuse_if_over(job)
    await cluster.merge(CELLS, cell.object_name, {"spec": {"cordon": wanted}})


async def suspend(cluster: Cluster, job: Job, wanted: bool) -> None:
    refuse_if_over(job)
    await cluster.merge(JOBS, job.name, {"spec": {"suspend": wanted}})


def refuse_if_over(job: Job) -> None:
    if job.ended:
        raise ClusterTrouble(f"rljob {job.name} has ended ({job.status.phase.value}): nothing of it can be changed; apply a new job")
    if job.deleting:
        raise ClusterTrouble(f"rljob {job.name} is being deleted: nothing of it can be changed")


def is_flipped(seen: Seen, name: str, role: Role) -> bool:
    """Whether the operator knows of the pin, and the cell is in this role and settled."""
    cell = _cell(seen, name)
    if cell is None or cell.status.observed_generation < cell.generation:
        return False
    return cell.status.role is role and cell.status.phase is CellPhase.READY and cell.status.epoch >= cell.granted_epoch


def is_drained(seen: Seen, name: str) -> bool:
    """Whether the conductor counts the cell out, and it has come back from training."""
    cell = _cell(seen, name)
    if cell is None:
        return False
    settled = cell.status.role is not Role.TRAINING and cell.status.phase is not CellPhase.FLIPPING and cell.status.epoch >= cell.granted_epoch
    return settled and any(c.type == "Cordoned" and c.status == "True" for c in cell.status.conditions)


def is_back(seen: Seen, name: str) -> bool:
    """Whether a cell takes part again."""
    cell = _cell(seen, name)
    return cell is not None and cell.status.observed_generation >= cell.generation and not any(c.type == "Cordoned" for c in cell.status.conditions)


def is_suspended(seen: Seen) -> bool:
    return seen.job.status.phase is JobPhase.SUSPENDED


def is_running(seen: Seen) -> bool:
    return seen.job.status.phase is JobPhase.RUNNING


def _cell(seen: Seen, name: str) -> Cell | None:
    return next((c for c in seen.cells if c.name == name), None)

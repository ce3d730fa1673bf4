"""GPUCell status: what the cell's agent told the conductor, and where its pods are."""

from __future__ import annotations

from tidemill.api.gpucell import GPUCellStatus
from tidemill.wire.cell import CellPhase, CellState
from tidemill.wire.conductor import CellTide
from tidemill_operator.conditions import Condition, Is, kept
from tidemill_operator.names import Manifest
from tidemill_operator.observed import Cell, Pod
from tidemill_operator.problems import problems
from tidemill_operator.status import flip_status, whole

AT_LEISURE_SECONDS = 60.0


def cell_status(cell: Cell, told: CellTide | None, pods: tuple[Pod, ...], now: float, *, awaited: bool = False) -> Manifest:
    """`awaited`: the conductor has not been heard yet, and what another operator wrote of it stands."""
    state = told.state if told else None
    ordered = sorted(pods, key=lambda p: p.rank)
    old = cell.status
    if awaited and old:
        return whole(GPUCellStatus, {**old, "pods": [p.name for p in ordered], "node": _node(ordered)})
    status: Manifest = {"observedGeneration": cell.generation, "pods": [p.name for p in ordered], "node": _node(ordered)}
    if state is not None:
        status |= _of_agent(state)
    else:
        keys = ("role", "epoch", "endpoint", "capacity", "policyVersion", "lastFlip", "lastFlipText")
        status |= {key: old[key] for key in keys if key in old} | {"phase": CellPhase.STARTING.value}
    status["conditions"] = kept(old.get("conditions") or (), _conditions(cell, told, tuple(ordered)), cell.generation, now)
    return whole(GPUCellStatus, status)


def due(old: Manifest, new: Manifest, last_written: float, now: float) -> bool:
    """Whether the status is worth a write now. The number of calls alone changes all the time, and is only now and then."""
    former = whole(GPUCellStatus, old)
    if former == new:
        return False
    return now - last_written >= AT_LEISURE_SECONDS or {**former, "unfinishedExecutions": 0} != {**new, "unfinishedExecutions": 0}


def _of_agent(state: CellState) -> Manifest:
    status: Manifest = {
        "role": state.role.value,
        "epoch": state.epoch,
        "phase": state.phase.value,
        "endpoint": state.url,
        "capacity": state.capacity,
        "unfinishedExecutions": state.live_calls,
        "policyVersion": state.policy_version,
    }
    flip = state.last_flip
    if flip is not None:
        status["lastFlip"] = flip_status(flip)
        status["lastFlipText"] = f"{flip.to.value} in {flip.seconds:.1f} s"
    return status


def _node(pods: list[Pod]) -> str:
    nodes = [p.node for p in pods if p.node]
    return "" if not nodes else nodes[0] if len(nodes) == 1 else f"{nodes[0]} +{len(nodes) - 1}"


def _conditions(cell: Cell, told: CellTide | None, pods: tuple[Pod, ...]) -> list[Condition]:
    state = told.state if told else None
    ready = told is not None and state is not None and told.settled and state.phase is CellPhase.READY
    wrong = problems(pods)
    message = wrong[0].message if wrong else state.reason if state else "its agent has not reported yet"
    found = [Condition("Ready", Is.TRUE, "Ready") if ready else Condition("Ready", Is.FALSE, wrong[0].reason if wrong else "NotReady", message)]
    if state is not None and state.phase is CellPhase.FAILED:
        found.append(Condition("Failed", Is.TRUE, "ChildrenKeepDying", f"{state.reason}; read the pod's log, then delete the pod to try again"))
    if cell.spec.cordon:
        drained = told is not None and told.cordoned
        found.append(Condition("Cordoned", Is.TRUE if drained else Is.FALSE, "Cordoned" if drained else "Pending", "spec.cordon is set"))
    if state is not None and cell.spec.epoch > 0 and told is not None and told.granted_epoch < cell.spec.epoch:
        ahead = (
            f"spec.epoch is {cell.spec.epoch}, the conductor's last grant is {told.granted_epoch}; flips go on, but this spec shows none before that "
            "epoch is reached; if it was written by hand, delete the GPUCell: it and its pods are made anew"
        )
        found.append(Condition("EpochAhead", Is.TRUE, "ConductorIsBehind", ahead))
    return found

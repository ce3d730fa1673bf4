"""The flip as a state machine: from the newest order and from where the cell stands to the next phase. Pure.

It is level-triggered: an order that supersedes another in mid-flip needs no way of undoing what was done, because the next phase
always follows from where the cell stands now. What may or may not have happened (a call without an answer) is unsure, and unsure
counts as the worse case. In a cell of several nodes, where the cell stands is where its slowest rank stands; nothing else changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from tidemill.wire.cell import CellKind, CellPhase, Role, RoleOrder
from tidemill.wire.http import Refused


class Phase(StrEnum):
    """One timed part of a flip."""

    DRAIN = "drain"
    SLEEP = "sleep"
    JOIN = "join"
    LEAVE = "leave"
    WAKE = "wake"
    WEIGHTS = "weights"
    ROUTE = "route"


class Engine(StrEnum):
    DOWN = "down"
    AWAKE = "awake"
    ASLEEP = "asleep"
    UNSURE = "unsure"


class Trainer(StrEnum):
    DOWN = "down"
    IDLE = "idle"
    JOINED = "joined"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Weights:
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class Routed:
    """A route as the gateway confirmed it."""

    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a cell stands."""

    engine: Engine = Engine.DOWN
    weights: Weights | None = None  # in the engine, verified
    trainer: Trainer = Trainer.DOWN
    joined_epoch: int = -1
    routed: Routed | None = None
    may_be_routed: bool = True  # until a drain has been answered: the agent may have been restarted
    joined_core: str = ""  # URL of the core that the trainer works for


@dataclass(frozen=True, slots=True)
class Tidings:
    """What the conductor last said of the weights. `published` is None before the first publication."""

    published: Weights | None = None
    core_url: str = ""  # of the core's trainer
    cordoned: bool = False  # a person wants this cell to serve nothing


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing can be done now; whoever brings what is missing wakes the loop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    role: Role
    epoch: int


def is_news(held: RoleOrder | None, order: RoleOrder, kind: CellKind) -> bool:
    """Whether `order` replaces `held`; the same order again does not.

    Raises:
        Refused: the order is older than the one held, contradicts it, or asks a standalone cell to train.
    """
    if kind is CellKind.STANDALONE and order.role is Role.TRAINING:
        raise Refused(f"epoch {order.epoch}: a standalone cell has no trainer and never trains; order Rollout")
    if held is None or order.epoch > held.epoch:
        return True
    if order.epoch < held.epoch:
        raise Refused(f"epoch {order.epoch} is older than epoch {held.epoch}, which this cell holds; read the current grant and order that")
    if order.role is not held.role:
        raise Refused(f"epoch {order.epoch} was ordered as {held.role} and cannot also be {order.role}; a new role needs a newer epoch")
    return False


def next_phase(order: RoleOrder, stands: Standing, tidings: Tidings) -> Phase | Blocked | None:
    """What brings the cell nearer to the order; None when it is where the order wants it."""
    return _to_training(order, stands, tidings) if order.role is Role.TRAINING else _to_rollout(order, stands, tidings)


def _to_training(order: RoleOrder, stands: Standing, tidings: Tidings) -> Phase | Blocked | None:
    if stands.may_be_routed:
        return Phase.DRAIN
    if stands.engine is Engine.DOWN:
        return Blocked("the engine is starting")  # it takes its memory while it starts, so the trainer waits until it sleeps
    if stands.engine is not Engine.ASLEEP:
        return Phase.SLEEP
    if stands.trainer is Trainer.DOWN:
        return Blocked("the trainer is starting")
    if stands.trainer is not Trainer.JOINED or stands.joined_epoch != order.epoch:
        return Phase.JOIN if tidings.core_url else Blocked("the conductor names no core to join")
    if tidings.core_url not in ("", stands.joined_core):
        return Phase.JOIN  # the core has come back under another address
    return None


def _to_rollout(order: RoleOrder, stands: Standing, tidings: Tidings) -> Phase | Blocked | None:
    if stands.trainer in (Trainer.JOINED, Trainer.UNSURE):
        return Phase.LEAVE
    if tidings.cordoned:
        return Phase.DRAIN if stands.may_be_routed else None
    if stands.may_be_routed and (stands.engine is not Engine.AWAKE or stands.weights is None):
        return Phase.DRAIN  # the engine behind the route is gone, or its weights are not known to be right
    if stands.engine is Engine.DOWN:
        return Blocked("the engine is starting")
    if stands.engine is not Engine.AWAKE:
        return Phase.WAKE
    if tidings.published is None:
        return Blocked("no weights are published yet")
    if stands.weights != tidings.published:
        return Phase.WEIGHTS if tidings.core_url else Blocked("the conductor names no core to read weights from")
    if stands.routed != Routed(order.epoch, tidings.published.version):
        return Phase.ROUTE
    return None


def before_the_end(stands: Standing) -> Phase | None:
    """What is still to be handed over before the agent may end; None when nothing is."""
    if stands.trainer in (Trainer.JOINED, Trainer.UNSURE):
        return Phase.LEAVE
    return Phase.DRAIN if stands.may_be_routed else None


def after(phase: Phase, order: RoleOrder, stands: Standing, tidings: Tidings) -> Standing:
    """Where the cell stands once `phase`, begun under `order` and `tidings`, has succeeded."""
    match phase:
        case Phase.DRAIN:
            return replace(stands, routed=None, may_be_routed=False)
        case Phase.SLEEP:
            return replace(stands, engine=Engine.ASLEEP, weights=None)  # level 2: the weights would be stale on return
        case Phase.JOIN:
            return replace(stands, trainer=Trainer.JOINED, joined_epoch=order.epoch, joined_core=tidings.core_url)
        case Phase.LEAVE:
            return replace(stands, trainer=Trainer.IDLE, joined_epoch=-1, joined_core="")
        case Phase.WAKE:
            return replace(stands, engine=Engine.AWAKE)
        case Phase.WEIGHTS:
            return replace(stands, weights=tidings.published)
        case Phase.ROUTE:
            version = stands.weights.version if stands.weights is not None else -1
            return replace(stands, routed=Routed(order.epoch, version), may_be_routed=True)


def after_failure(phase: Phase, stands: Standing) -> Standing:
    """Where the cell stands when `phase` had an effect, or part of one, or none."""
    match phase:
        case Phase.SLEEP:
            return replace(stands, engine=Engine.UNSURE, weights=None)
        case Phase.WAKE:
            return replace(stands, engine=Engine.UNSURE)
        case Phase.JOIN | Phase.LEAVE:
            return replace(stands, trainer=Trainer.UNSURE)
        case Phase.WEIGHTS:
            return replace(stands, weights=None)
        case Phase.ROUTE:
            return replace(stands, may_be_routed=True)
        case Phase.DRAIN:
            return stands


def engine_up(stands: Standing) -> Standing:
    """A new engine process: awake, with weights nobody verified."""
    return replace(stands, engine=Engine.AWAKE, weights=None)


def engine_down(stands: Standing) -> Standing:
    return replace(stands, engine=Engine.DOWN, weights=None)


def trainer_up(stands: Standing) -> Standing:
    """A new trainer process: it leases nothing until it is told to join."""
    return replace(stands, trainer=Trainer.IDLE, joined_epoch=-1, joined_core="")


def trainer_down(stands: Standing) -> Standing:
    return replace(stands, trainer=Trainer.DOWN, joined_epoch=-1, joined_core="")


def in_effect(acknowledged: Acknowledged, stands: Standing) -> bool:
    """Whether the acknowledged role is being done, though something may be under way (a publication, an engine that restarts asleep)."""
    if acknowledged.role is Role.TRAINING:
        return stands.trainer is Trainer.JOINED and stands.joined_epoch == acknowledged.epoch
    return stands.engine is Engine.AWAKE and stands.weights is not None and stands.routed is not None and stands.routed.epoch == acknowledged.epoch


def cell_phase(order: RoleOrder | None, acknowledged: Acknowledged | None, stands: Standing) -> CellPhase:
    if order is None or acknowledged is None:
        return CellPhase.STARTING
    if acknowledged != Acknowledged(order.role, order.epoch):
        return CellPhase.FLIPPING
    return CellPhase.READY if in_effect(acknowledged, stands) else CellPhase.STARTING


def refusal(order: RoleOrder | None, stands: Standing, epoch: int) -> str:
    """Why a call that was routed under `epoch` is not served here; "" when it is.

    The gate opens before the gateway hears of the route, and closes the moment the cell is ordered away.
    """
    if order is None or order.role is Role.TRAINING:
        return "the cell is not in rollout; send the call to another"
    if stands.engine is not Engine.AWAKE or stands.weights is None:
        return "the cell's engine holds no verified weights yet; send the call to another"
    oldest = stands.routed.epoch if stands.routed is not None else order.epoch
    if epoch < oldest:
        return f"epoch {epoch} is older than epoch {oldest} of this cell's route; read the routes again"
    return ""


@dataclass(frozen=True, slots=True)
class Limit:
    """How long one attempt at a phase may take, and after how many in a row the child that does not obey is restarted."""

    deadline_seconds: float
    attempts: int
    interruptible: bool = False  # by a newer order. A call to the gateway names its epoch, so what is left of it does no harm


LIMITS: dict[Phase, Limit] = {
    Phase.DRAIN: Limit(60.0, 0, interruptible=True),
    Phase.SLEEP: Limit(120.0, 2),
    Phase.JOIN: Limit(60.0, 5),
    Phase.LEAVE: Limit(150.0, 2),  # what a killed trainer had not handed over is requeued
    Phase.WAKE: Limit(120.0, 2),
    Phase.WEIGHTS: Limit(200.0, 2),
    Phase.ROUTE: Limit(10.0, 0, interruptible=True),
}

LONGEST_PAUSE_SECONDS = 5.0


def pause_before_retry(attempts: int) -> float:
    """Seconds, after the failed attempt of this number."""
    return min(LONGEST_PAUSE_SECONDS, 0.1 * 2.0 ** min(attempts, 10))

"""What a trainer does next: one decision, taken from the store each time it is asked."""

from __future__ import annotations

from tidemill.wire.cell import Role
from tidemill.wire.conductor import Grant, LeaseReply, LeaseRequest, Work
from tidemill.wire.http import Refused
from tidemill_rollout.conductor import bursts, microsteps, steps
from tidemill_rollout.conductor.microsteps import Lost
from tidemill_rollout.conductor.store import Database

CORE = "cell-0"


def admit(db: Database, request: LeaseRequest) -> None:
    """Once for each request, before it waits.

    Raises:
        Refused: the trainer has been replaced, or the core holds other weights than the committed ones.
    """
    microsteps.admit(db, request.cell, request.incarnation, request.cell == CORE)
    committed = bursts.committed_steps(db)
    if request.cell == CORE and request.checkpoint_step not in (-1, committed):
        raise Refused(
            f"cell {CORE}: holds weights of step {request.checkpoint_step}, but {committed} steps are committed; load what GET /v1/training names"
        )
    if request.holding is not None:
        microsteps.free(db, request.cell, Lost.NOT_HELD, keep=request.holding)


def next_work(db: Database, request: LeaseRequest, grant: Grant, now: float) -> LeaseReply | None:
    """None: nothing yet, and the trainer holds nothing, so that it may wait for more.

    Raises:
        Refused: the trainer has been replaced while it waited, or names an epoch that was never granted.
    """
    if not microsteps.is_newest(db, request.cell, request.incarnation):
        raise Refused(f"cell {request.cell}: trainer {request.incarnation} has been replaced; it must exit")
    if request.epoch > grant.epoch:
        raise Refused(f"cell {request.cell}: epoch {request.epoch} was never granted, the current one is {grant.epoch}")
    is_core = request.cell == CORE
    if is_core and (due := bursts.publication_due(db)):
        version, step = due
        return LeaseReply(Work.PUBLISH, step=step, version=version)
    step = bursts.committed_steps(db)
    if (grant.role, grant.epoch) != (Role.TRAINING, request.epoch):
        return None if is_core else LeaseReply(Work.OVER, step=step)
    if leased := microsteps.lease(db, step, request.cell, request.epoch, max(1, request.max), now):
        return LeaseReply(Work.COMPUTE, step=step, micro_steps=leased, lease_seconds=microsteps.LEASE_SECONDS)
    if is_core and steps.to_apply(db):
        return LeaseReply(Work.APPLY, step=step, count=microsteps.counted(db, step))
    return LeaseReply(Work.WAIT, step=step) if microsteps.held(db, request.cell) else None

"""One entry for every controller: the cells that should be granted Training now, under the job's mode."""

from __future__ import annotations

from enum import StrEnum

from tidemill.policy import asynchronous, colocate, waterlevel
from tidemill.policy.tide import Tide


class Mode(StrEnum):
    ELASTIC = "Elastic"
    COLOCATE = "Colocate"
    ASYNC = "Async"


def to_train(mode: Mode, tide: Tide, async_training_cells: int = 1) -> tuple[str, ...]:
    """Names, in the order in which the grants are made. Empty when nothing may change, or when this burst has nothing left to train."""
    if tide.groups_due == 0:
        return ()
    match mode:
        case Mode.ELASTIC:
            leaver = waterlevel.next_to_train(tide)
            return (leaver.name,) if leaver else ()
        case Mode.COLOCATE:
            return tuple(c.name for c in colocate.next_to_train(tide))
        case Mode.ASYNC:
            return tuple(c.name for c in asynchronous.next_to_train(tide, async_training_cells))


def keeps_training(mode: Mode, tide: Tide, groups_per_step: int, async_training_cells: int = 1) -> tuple[str, ...]:
    """Cells that stay in training when a burst ends; all others return to rollout."""
    match mode:
        case Mode.ELASTIC:
            core = tide.cells[0]
            return (core.name,) if not core.in_rollout and waterlevel.core_stays(tide, groups_per_step) else ()
        case Mode.COLOCATE:
            return ()
        case Mode.ASYNC:
            return tuple(c.name for c in tide.flip_order[:async_training_cells])

"""One reading of a job, as far as the rules need it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Pin(StrEnum):
    """What a person wants of one cell."""

    ROLLOUT = "Rollout"  # it never trains
    TRAINING = "Training"  # it leaves rollout before all other satellites


@dataclass(frozen=True, slots=True)
class CellView:
    """What the rules need to know of one cell."""

    name: str
    capacity: int  # C_e, executions it can serve at once
    in_rollout: bool  # by its grant, not by what it has acknowledged: capacity that was given away is gone
    settled: bool = True  # its granted role and epoch are acknowledged
    usable: bool = True  # False: it has failed, fallen silent or been cordoned; it serves nothing and is granted nothing
    pinned: Pin | None = None
    late: bool = False  # it should have settled by now: nothing is to be expected of it, and nobody waits for it

    @property
    def takes_part(self) -> bool:
        """In rollout a late cell serves nothing and is granted nothing until it settles; in training it trains nothing, and is in nobody's way."""
        return self.usable and not (self.late and self.in_rollout)


class Fleet(tuple[CellView, ...]):
    """The cells of a tide. What follows from them alone is worked out once: a simulation of a thousand cells reads the same ones many times."""

    @cached_property
    def usable(self) -> tuple[CellView, ...]:
        return tuple(c for c in self if c.usable)

    @cached_property
    def settled(self) -> bool:
        """Nobody who counts is on the way from one role to the other. One that is late is waited for no longer, so that no cell can hang another."""
        return all(c.settled or c.late for c in self.usable)

    @cached_property
    def flip_order(self) -> tuple[CellView, ...]:
        """Cells that may train, usable or not, in the order in which they leave rollout: the core, those pinned to Training, the others.

        Empty when the core may not train, because what the others add up needs it.
        """
        core, *satellites = self or (None,)
        if core is None or core.pinned is Pin.ROLLOUT or not core.usable:
            return ()
        free = [c for c in satellites if c.pinned is not Pin.ROLLOUT]
        return (core, *sorted(free, key=lambda c: c.pinned is not Pin.TRAINING))

    @cached_property
    def next_in_order(self) -> CellView | None:
        """The first that may train and does not. None while the core is late: what the others add up needs it."""
        core, *satellites = self.flip_order or (None,)
        if core is None or (core.in_rollout and core.late):
            return None
        return next((c for c in (core, *satellites) if c.takes_part and c.in_rollout), None)

    @cached_property
    def serving_capacity(self) -> int:
        return sum(c.capacity for c in self if c.takes_part and c.in_rollout)


@dataclass(frozen=True, slots=True)
class Tide:
    """`cells` stand in flip order, the core first; standalone replicas are not among them, because they never train."""

    dispatched: int  # d
    terminated: int  # f
    cells: tuple[CellView, ...]
    standalone_capacity: int = 0
    ready_groups: int = 0  # complete, scored, not yet assigned to a step
    groups_due: int = 0  # groups this burst still has to train, whether ready or not

    @property
    def waterlevel(self) -> int:
        """Unfinished executions, w = d - f. Never rises inside a burst, because nothing is dispatched there."""
        return self.dispatched - self.terminated

    @property
    def fleet(self) -> Fleet:
        return self.cells if isinstance(self.cells, Fleet) else Fleet(self.cells)

    @property
    def usable_cells(self) -> tuple[CellView, ...]:
        return self.fleet.usable

    @property
    def flip_order(self) -> tuple[CellView, ...]:
        return self.fleet.flip_order

    @property
    def rollout_capacity(self) -> int:
        """C_R."""
        return self.standalone_capacity + self.fleet.serving_capacity

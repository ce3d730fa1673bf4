"""One reading of a job, as far as the rules need it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CellView:
    """What the rules need to know of one cell."""

    name: str
    capacity: int  # C_e, executions it can serve at once
    in_rollout: bool  # by its grant, not by what it has acknowledged: capacity that was given away is gone
    settled: bool = True  # its granted role and epoch are acknowledged
    usable: bool = True  # False: it has failed or fallen silent, serves nothing and is granted nothing


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
    def usable_cells(self) -> tuple[CellView, ...]:
        return tuple(c for c in self.cells if c.usable)

    @property
    def rollout_capacity(self) -> int:
        """C_R."""
        return self.standalone_capacity + sum(c.capacity for c in self.usable_cells if c.in_rollout)

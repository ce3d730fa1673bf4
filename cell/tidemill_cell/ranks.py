"""The other nodes of a cell, as the agent of rank 0 knows them. A cell of several nodes stands where its slowest rank stands."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidemill.wire.cell import RankState, Role
from tidemill.wire.http import Rejected

SILENT_SECONDS = 15.0
"""A rank reports several times a second. One that has not for so long is taken for gone, and the cell with it."""


class Ranks:
    """What each of them last said. The number of nodes counts this one, which is rank 0 and is not among them."""

    def __init__(self, cell: str, nodes: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._cell = cell
        self._nodes = nodes
        self._clock = clock
        self._heard: dict[int, tuple[RankState, float]] = {}

    def note(self, told: RankState) -> None:
        """Raises `Rejected` when this cell has no such rank."""
        if told.cell != self._cell or not 0 < told.rank < self._nodes:
            raise Rejected(
                404, f"rank {told.rank} of {told.cell}: this is {self._cell} with {self._nodes} nodes; look at --rank, --ranks and --leader"
            )
        before = self._heard.get(told.rank)
        self._heard[told.rank] = (told, self._clock())
        if before is None or before[0] != told:
            self.on_change()

    def trouble(self) -> str:
        """Why the cell is not whole; "" when it is."""
        for rank in range(1, self._nodes):
            state = self._fresh(rank)
            if state is None:
                return f"rank {rank} has not reported for {SILENT_SECONDS:g} s" if rank in self._heard else f"rank {rank} has not reported yet"
            if state.leaving:
                return f"rank {rank} is leaving"
            if not state.healthy:
                return f"rank {rank}: {state.reason or 'its children are starting'}"
        return ""

    def lagging(self, role: Role, epoch: int) -> str:
        """Who has not acknowledged; "" when all have."""
        for rank in range(1, self._nodes):
            state = self._fresh(rank)
            if state is None or (state.role, state.epoch) != (role, epoch):
                return f"rank {rank} has not acknowledged {role} under epoch {epoch}"
        return ""

    @property
    def life(self) -> str:
        """Changes when a child of any of them is another process than before."""
        return " ".join(state.incarnation for _, (state, _) in sorted(self._heard.items()))

    def _fresh(self, rank: int) -> RankState | None:
        state, heard = self._heard.get(rank, (None, 0.0))
        return state if self._clock() - heard <= SILENT_SECONDS else None

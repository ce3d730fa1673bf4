"""What the operator is measured with: jobs whose executions finish, with the moments at which each role was due and at which it stood written."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from tests.cluster.operator_stand_ins import CAPACITY, ConductorStandIn
from tidemill.policy.decide import Mode, to_train
from tidemill.wire.cell import Role
from tidemill.wire.http import Board
from tidemill.wire.rules import for_rules

type Cell = tuple[str, str]


class NoticingBoard(Board):
    """Tells the load of every change before anybody else learns of it."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        self._load = load

    async def bump(self) -> None:
        self._load.notice()
        await super().bump()


@dataclass
class Seen:
    """When a role was due and when it was seen to be written, for each cell and epoch."""

    due: dict[tuple[Cell, int], float] = field(default_factory=dict)
    crossings: list[float] = field(default_factory=list)  # seconds
    returns: list[float] = field(default_factory=list)
    cells: set[Cell] = field(default_factory=set)  # that are there

    def written(self, cell: Cell, role: str, epoch: int) -> None:
        self.cells.add(cell)
        at = self.due.pop((cell, epoch), None)
        if at is not None:
            (self.crossings if role == Role.TRAINING else self.returns).append(time.monotonic() - at)

    def forget(self) -> None:
        self.due.clear()
        self.crossings.clear()
        self.returns.clear()


class Load(ConductorStandIn):
    """One job whose executions finish, whose cells leave one after the other, and come back when its burst ends."""

    def __init__(self, name: str, cells: list[str], seen: Seen) -> None:
        super().__init__(cells, dispatched=CAPACITY * len(cells), steps=100_000)
        self.name, self.seen = name, seen
        self.board = NoticingBoard(self)

    def notice(self) -> None:
        for cell in to_train(Mode.ELASTIC, for_rules(self.tide())):
            self.seen.due.setdefault(((self.name, cell), self.grants[cell].epoch + 1), time.monotonic())

    @property
    def unfinished(self) -> int:
        return self.dispatched - self.terminated

    async def fill(self) -> None:
        """The burst ends: every cell goes back to rollout, and what they serve is dispatched."""
        for cell in self.cells:
            if self.grants[cell].role is Role.TRAINING:
                granted = self.issue(cell, Role.ROLLOUT)
                self.seen.due[(self.name, cell), granted.epoch] = time.monotonic()
        self.step, self.burst = self.step + 1, self.burst + 1
        self.dispatched = self.terminated + CAPACITY * len(self.cells)
        await self.board.bump()

    async def ebb(self, burst_seconds: float, ready_at: float, chance: random.Random) -> None:
        """Three quarters of the executions finish, one after the other; then a new burst. Ever again."""
        whole = CAPACITY * len(self.cells)
        await self.finish(int(0.75 * whole * ready_at))
        while True:
            await asyncio.sleep(chance.expovariate(0.75 * whole / burst_seconds))
            if self.unfinished <= whole // 4:
                await self.fill()
            else:
                await self.finish(1)

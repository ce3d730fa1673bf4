"""The agent of a node that is not the first of its cell: it keeps its children alive and acknowledges to rank 0, which owns role and epoch.

What the children do is driven by those of rank 0, as ranks of one parallel engine or trainer are. So this agent decides nothing: it says
that its children live under the epoch it was told.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from tidemill.telemetry.exposition import metrics_of
from tidemill.telemetry.logs import Log
from tidemill.telemetry.registry import Registry
from tidemill.wire.cell import CellClient, RankOrder, RankState, Role
from tidemill.wire.http import WireError, application
from tidemill.wire.trust import Credential
from tidemill_cell.children import Child, Health

REPORT_SECONDS = 0.25
"""Between two reports: a flip of the whole cell waits for the last of its ranks."""


@dataclass(frozen=True, slots=True)
class Place:
    cell: str
    rank: int
    url: str  # of this agent


class Follower:
    def __init__(self, place: Place, children: tuple[Child, ...], leader: CellClient, report_seconds: float = REPORT_SECONDS) -> None:
        self._place = place
        self._children = children
        self._leader = leader
        self._report_seconds = report_seconds
        self._acknowledged = RankOrder(Role.ROLLOUT, -1)
        self._ordered = RankOrder(Role.ROLLOUT, -1)
        self._leaving = False
        self._told_leaving = asyncio.Event()
        self._log = Log(__name__, cell=place.cell, rank=place.rank)

    def state(self) -> RankState:
        failed = next((c for c in self._children if c.health is Health.FAILED), None)
        return RankState(
            cell=self._place.cell,
            rank=self._place.rank,
            url=self._place.url,
            role=self._acknowledged.role,
            epoch=self._acknowledged.epoch,
            healthy=self._healthy,
            incarnation=" ".join(c.incarnation for c in self._children),
            leaving=self._leaving,
            reason=failed.reason if failed else "",
        )

    @property
    def failed(self) -> bool:
        return any(c.health is Health.FAILED for c in self._children)

    @property
    def ready(self) -> bool:
        return self._healthy and not self._leaving and self._acknowledged.epoch >= 0 and self._acknowledged == self._ordered

    @property
    def _healthy(self) -> bool:
        return all(c.healthy for c in self._children)

    async def leave(self) -> None:
        """Return when rank 0 knows. It drains the whole cell then."""
        self._leaving = True
        await self._told_leaving.wait()

    async def run(self) -> None:
        """Live until cancelled. Children end with it."""
        async with asyncio.TaskGroup() as tasks:
            for child in self._children:
                tasks.create_task(child.run())
            tasks.create_task(self._report())

    async def _report(self) -> None:
        heard = True
        while True:
            if self._healthy and self._ordered.epoch >= self._acknowledged.epoch:
                self._acknowledged = self._ordered
            state = self.state()
            try:
                self._ordered = await self._leader.report_rank(state)
                heard = True
                if state.leaving:
                    self._told_leaving.set()
            except WireError as trouble:
                if heard:
                    self._log.warning("rank 0 does not take reports", trouble=str(trouble))
                heard = False
            await asyncio.sleep(self._report_seconds)


def routes(follower: Follower, registry: Registry, trust: Credential | str) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        state = follower.state()
        return web.Response(text=f"{state.reason or 'ok'}\n", status=503 if follower.failed else 200)

    async def readyz(_: web.Request) -> web.Response:
        state = follower.state()
        if follower.ready:
            return web.Response(text=f"{state.role} under epoch {state.epoch}\n")
        return web.Response(text=f"rank {state.rank}: {state.reason or 'has not acknowledged what rank 0 holds'}\n", status=503)

    app = application(trust)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics_of(registry))
    return app

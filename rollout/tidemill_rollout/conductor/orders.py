"""Bringing grants to the cells: pushed until the agent answers. One that does not learns its grant from the answer to its own next report."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import aiohttp

from tidemill.telemetry.logs import Log
from tidemill.wire.cell import CellClient, RoleOrder
from tidemill.wire.conductor import Grant
from tidemill.wire.http import Unreachable, WireError
from tidemill.wire.trust import Credential
from tidemill_rollout.conductor.cells import Cell

RETRY_SECONDS = 0.5

_log = Log(__name__)


class Orders:
    def __init__(
        self,
        credential: Credential | str,
        session: aiohttp.ClientSession,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self._credential = credential
        self._session = session
        self._spawn = spawn
        self._pushed: dict[str, tuple[int, str, asyncio.Task[None]]] = {}  # epoch, and the agent's URL

    def push(self, known: tuple[Cell, ...]) -> None:
        """Every grant that its cell has not acknowledged, once to each agent: one that came back under another address is told anew."""
        for cell in known:
            if cell.state is None or cell.settled or cell.state.epoch == cell.epoch:
                continue
            before = self._pushed.get(cell.name)
            if before is not None:
                epoch, url, task = before
                if (epoch, url) == (cell.epoch, cell.state.url):
                    continue
                task.cancel()
            self._pushed[cell.name] = (cell.epoch, cell.state.url, self._spawn(self._insist(cell.state.url, cell.grant())))

    async def _insist(self, url: str, grant: Grant) -> None:
        client = CellClient(url, self._credential, self._session)
        while True:
            try:
                await client.put_role(RoleOrder(grant.role, grant.epoch, grant.destinations))
            except Unreachable:
                await asyncio.sleep(RETRY_SECONDS)
            except WireError as trouble:
                _log.error("order refused", cell=grant.cell, epoch=grant.epoch, reason=str(trouble))
                return
            else:
                return

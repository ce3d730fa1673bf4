"""What sandbox pods fetch and bring: `GET` and `PUT /v1/executions/{execution}/sandbox/...`, called by the gateway for a sandbox that it knows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tidemill.telemetry.logs import Log
from tidemill.wire.gateway import ATTEMPT_HEADER
from tidemill.wire.http import Rejected, Unreachable, reply
from tidemill.wire.trainer import Nothing
from tidemill_rollout.sandbox import archive
from tidemill_rollout.sandbox.enter import SECONDS_HEADER, Report

ROOM_BYTES = 16 * 2**20
"""Beside the folders, an archive holds the output, the report and its own headers."""

CHUNK_BYTES = 2**18

log = Log(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One pod's: what it is given, and where what it brings goes."""

    attempt: int
    given: Path
    brought: Path
    bring: tuple[str, ...]
    bring_bytes: int
    until: float  # of the clock
    arrived: asyncio.Future[Report] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Deliveries:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, Delivery] = {}
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def expect(self, door: str, delivery: Delivery) -> Iterator[None]:
        """While the block lasts, the sandbox behind this door is served."""
        self._open[door] = delivery
        try:
            yield
        finally:
            if self._open.get(door) is delivery:
                del self._open[door]

    def routes(self) -> list[web.RouteDef]:
        path = "/v1/executions/{execution}/sandbox"
        return [web.get(f"{path}/task", self._give), web.put(f"{path}/work", self._take)]

    async def _give(self, request: web.Request) -> web.StreamResponse:
        delivery = self._of(request)
        return web.FileResponse(delivery.given, headers={SECONDS_HEADER: f"{max(0.0, delivery.until - self._clock()):.3f}"})

    async def _take(self, request: web.Request) -> web.Response:
        delivery = self._of(request)
        if not delivery.arrived.done():
            part = delivery.brought.with_name(f".{delivery.brought.name}.{next(self._numbers)}")
            try:
                await _store(request, part, delivery.bring_bytes + ROOM_BYTES)
                report = await asyncio.to_thread(archive.check, part, delivery.bring)
                if not delivery.arrived.done():  # meanwhile, by another connection
                    part.replace(delivery.brought)
                    delivery.arrived.set_result(report)
            except archive.BadArchive as problem:
                raise Rejected(400, f"{request.path}: {problem}") from problem
            except OSError as problem:
                raise Unreachable(f"{request.path}: {problem}") from problem
            finally:
                part.unlink(missing_ok=True)
        return reply(Nothing())

    def _of(self, request: web.Request) -> Delivery:
        name = request.match_info["execution"]
        delivery = self._open.get(name)
        if delivery is None or request.headers.get(ATTEMPT_HEADER) != str(delivery.attempt):
            raise Rejected(410, f"execution {name}: this attempt is over")
        return delivery


async def _store(request: web.Request, path: Path, most: int) -> None:
    told = request.content_length or 0
    total = 0
    with path.open("wb") as file:
        async for chunk in request.content.iter_chunked(CHUNK_BYTES):
            total += len(chunk)
            if max(total, told) > most:
                raise Rejected(413, f"the archive is larger than {most} bytes, it is not kept")
            await asyncio.to_thread(file.write, chunk)

"""The trainer's HTTP API: the agent sets it to work, others read weights from the core, satellites offer it gradient sums."""

from __future__ import annotations

from aiohttp import web

from tidemill.telemetry.exposition import metrics_of
from tidemill.wire.http import Handler, Refused, Rejected, Unreachable, application, read, reply
from tidemill.wire.trainer import GradientSum, Join, Leave, Nothing, WeightSnapshot
from tidemill.wire.trust import Credential
from tidemill_trainer.core import Core
from tidemill_trainer.metrics import registry_of
from tidemill_trainer.satellite import Satellite
from tidemill_trainer.worker import Worker

LEAVE_SECONDS = 290.0


class Door:
    """Listens from the first moment; answers 503 to everything but `/healthz` until `open`."""

    def __init__(self, job: str, cell: str, trust: Credential | str) -> None:
        self._job = job
        self._cell = cell
        self._metrics: Handler | None = None
        self._worker: Worker | None = None
        self._home: Core | Satellite | None = None
        self.app = application(trust)
        self.app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/metrics", self._tell_metrics),
                web.get("/v1/state", self._state),
                web.get("/v1/weights", self._weights),
                web.post("/v1/join", self._join),
                web.post("/v1/leave", self._leave),
                web.post("/v1/gradients", self._gradients),
            ]
        )

    def open(self, worker: Worker, home: Core | Satellite) -> None:
        self._worker, self._home = worker, home
        self._metrics = metrics_of(registry_of(self._job, self._cell, home))

    async def _healthz(self, request: web.Request) -> web.Response:
        return reply(Nothing())

    async def _tell_metrics(self, request: web.Request) -> web.StreamResponse:
        self._working()
        assert self._metrics is not None
        return await self._metrics(request)

    async def _state(self, request: web.Request) -> web.Response:
        return reply(self._working().state)

    async def _join(self, request: web.Request) -> web.Response:
        order = await read(request, Join)
        worker = self._working()
        if isinstance(self._home, Satellite):
            if not order.core_url:
                raise Rejected(400, f"{self._cell} is a satellite: join needs core_url")
            state = worker.join(order)
            self._home.serve(order.core_url)
            return reply(state)
        return reply(worker.join(order))

    async def _leave(self, request: web.Request) -> web.Response:
        order = await read(request, Leave)
        return reply(await self._working().leave(order, LEAVE_SECONDS))

    async def _weights(self, request: web.Request) -> web.Response:
        return reply(self._served(request))

    def _served(self, request: web.Request) -> WeightSnapshot:
        core = self._core()
        step, version = request.query.get("step"), request.query.get("version")
        try:
            if step is not None:
                return core.weights_of_step(int(step))
            if version is not None:
                return core.weights_of_version(int(version))
        except ValueError as cause:
            raise Rejected(400, f"/v1/weights: step and version are whole numbers ({cause})") from cause
        raise Rejected(400, "/v1/weights: name ?step=N or ?version=N")

    async def _gradients(self, request: web.Request) -> web.Response:
        await self._core().take_in(await read(request, GradientSum))
        return reply(Nothing())

    def _working(self) -> Worker:
        if self._worker is None:
            raise Unreachable(f"the trainer of {self._cell} is loading its model; ask again")
        return self._worker

    def _core(self) -> Core:
        self._working()
        if not isinstance(self._home, Core):
            raise Refused(f"{self._cell} is not the core: weights and sums are the core's")
        return self._home

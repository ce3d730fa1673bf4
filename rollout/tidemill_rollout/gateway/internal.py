"""What the gateway's port serves beside harnesses: `/v1/...` for our own processes, with the job's token; health and metrics for whoever asks."""

from __future__ import annotations

from aiohttp import web

from tidemill.telemetry.exposition import metrics_of
from tidemill.telemetry.registry import Registry
from tidemill.wire.gateway import Drain, OpenExecution, Route
from tidemill.wire.http import Rejected, application, read, reply
from tidemill.wire.trainer import Nothing
from tidemill.wire.trust import Credential
from tidemill_rollout.gateway.executions import Gateway
from tidemill_rollout.gateway.server import HarnessSide, sandbox_application


def full_application(gateway: Gateway, harnesses: HarnessSide, trust: Credential | str, registry: Registry) -> web.Application:
    """What the TCP port serves."""

    async def open_execution(request: web.Request) -> web.Response:
        opened = await read(request, OpenExecution)
        _same("execution", request.match_info["execution"], opened.execution)
        await gateway.open(opened)
        return reply(Nothing())

    async def close_execution(request: web.Request) -> web.Response:
        attempt = request.query.get("attempt", "")
        if not attempt.isdigit():
            raise Rejected(400, f"{request.path}: attempt is {attempt!r}, expected a number")
        return reply(await gateway.close(request.match_info["execution"], int(attempt)))

    async def put_route(request: web.Request) -> web.Response:
        route = await read(request, Route)
        _same("cell", request.match_info["cell"], route.cell)
        gateway.put_route(route)
        return reply(Nothing())

    async def drain(request: web.Request) -> web.Response:
        return reply(await gateway.drain(request.match_info["cell"], await read(request, Drain)))

    async def state(request: web.Request) -> web.Response:
        return reply(gateway.state())

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    internal = application(trust)
    internal.router.add_put("/executions/{execution}", open_execution)
    internal.router.add_post("/executions/{execution}/close", close_execution)
    internal.router.add_put("/routes/{cell}", put_route)
    internal.router.add_post("/cells/{cell}/drain", drain)
    internal.router.add_get("/state", state)
    app = sandbox_application(harnesses)
    app.add_subapp("/v1", internal)
    app.router.add_get("/healthz", health)
    app.router.add_get("/metrics", metrics_of(registry))
    return app


def _same(what: str, path: str, body: str) -> None:
    if path != body:
        raise Rejected(400, f"{what} is {path} in the path and {body} in the body")

"""The agent's HTTP API."""

from __future__ import annotations

from aiohttp import web

from tidemill.telemetry.exposition import metrics_of
from tidemill.telemetry.registry import Registry
from tidemill.wire.cell import CellPhase, RankState, RoleOrder
from tidemill.wire.http import Rejected, application, read, reply
from tidemill.wire.trust import Credential
from tidemill_cell.agent import Agent
from tidemill_cell.proxy import Proxy

_LONGEST_WAIT_SECONDS = 60.0

PUBLIC_PATHS = ("/healthz", "/readyz", "/metrics", "/engine/metrics")


def routes(agent: Agent, proxy: Proxy, registry: Registry, trust: Credential | str) -> web.Application:
    async def put_role(request: web.Request) -> web.Response:
        agent.order(await read(request, RoleOrder))
        return reply(agent.state(), 202)

    async def get_state(request: web.Request) -> web.Response:
        await agent.board.newer_than(int(_number(request, "after", -1)), min(_number(request, "wait", 20.0), _LONGEST_WAIT_SECONDS))
        return reply(agent.state())

    async def rank(request: web.Request) -> web.Response:
        return reply(agent.note_rank(await read(request, RankState)))

    async def healthz(_: web.Request) -> web.Response:
        state = agent.state()
        return web.Response(text=f"{state.phase}\n", status=503 if state.phase is CellPhase.FAILED else 200)

    async def readyz(_: web.Request) -> web.Response:
        """Ready is a cell that does what it was granted: in rollout with verified weights and a route, in training with a trainer that has joined."""
        state = agent.state()
        if state.phase is CellPhase.READY:
            return web.Response(text=f"{state.role} under epoch {state.epoch}\n")
        return web.Response(text=f"{state.phase}: {state.reason or 'has not acknowledged its newest grant'}\n", status=503)

    app = application(trust, PUBLIC_PATHS)
    app.router.add_put("/v1/role", put_role)
    app.router.add_get("/v1/state", get_state)
    app.router.add_post("/v1/ranks", rank)
    app.router.add_post("/inference/v1/generate", proxy.generate)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics_of(registry))
    app.router.add_get("/engine/metrics", proxy.metrics)
    return app


def _number(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name)
    try:
        return default if text is None else float(text)
    except ValueError as cause:
        raise Rejected(400, f"{request.path}: {name}={text} is not a number") from cause

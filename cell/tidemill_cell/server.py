"""The agent's HTTP API."""

from __future__ import annotations

from aiohttp import web

from tidemill.wire.cell import CellPhase, RankState, RoleOrder
from tidemill.wire.http import Rejected, application, read, reply
from tidemill.wire.trust import Credential
from tidemill_cell.agent import Agent
from tidemill_cell.proxy import Proxy

_LONGEST_WAIT_SECONDS = 60.0


def routes(agent: Agent, proxy: Proxy, trust: Credential | str) -> web.Application:
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

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=_metrics(agent, proxy))

    app = application(trust)
    app.router.add_put("/v1/role", put_role)
    app.router.add_get("/v1/state", get_state)
    app.router.add_post("/v1/ranks", rank)
    app.router.add_post("/inference/v1/generate", proxy.generate)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


def _number(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name)
    try:
        return default if text is None else float(text)
    except ValueError as cause:
        raise Rejected(400, f"{request.path}: {name}={text} is not a number") from cause


def _metrics(agent: Agent, proxy: Proxy) -> str:
    """Prometheus text: what a probe or a dashboard needs of one cell."""
    state = agent.state()
    cell = f'cell="{state.cell}"'
    lines = [
        f'tidemill_cell_role{{{cell},role="{state.role}"}} 1',
        f'tidemill_cell_phase{{{cell},phase="{state.phase}"}} 1',
        f"tidemill_cell_epoch{{{cell}}} {state.epoch}",
        f"tidemill_cell_policy_version{{{cell}}} {state.policy_version}",
        f"tidemill_cell_flips_total{{{cell}}} {agent.flips}",
        f"tidemill_cell_calls_total{{{cell}}} {proxy.calls}",
        f"tidemill_cell_calls_live{{{cell}}} {proxy.live_calls}",
    ]
    lines += [f'tidemill_cell_child_starts_total{{{cell},child="{child.program.name}"}} {child.starts}' for child in agent.children]
    if state.last_flip is not None:
        flip = state.last_flip
        labels = f'{cell},to="{flip.to}"'
        lines += [f'tidemill_cell_last_flip_phase_seconds{{{labels},phase="{name}"}} {seconds:.6f}' for name, seconds in flip.phases.items()]
        lines.append(f"tidemill_cell_last_flip_seconds{{{labels}}} {flip.seconds:.6f}")
    return "\n".join(lines) + "\n"

"""The conductor's routes: each reads a message, makes one change or asks one question, and answers."""

from __future__ import annotations

from aiohttp import web

from tidemill.telemetry.exposition import metrics_of
from tidemill.wire.cell import CellState
from tidemill.wire.conductor import (
    Applied,
    Authority,
    Constraints,
    Contribution,
    Grant,
    GrantRequest,
    LeaseIds,
    LeaseRequest,
    Published,
    SettingsChange,
    Suspend,
    TrainingState,
)
from tidemill.wire.gateway import Turns
from tidemill.wire.http import Refused, Rejected, application, read, reply
from tidemill.wire.trainer import Nothing
from tidemill.wire.trust import Credential
from tidemill_rollout.conductor import bursts, controller, executions, microsteps, steps, views, work
from tidemill_rollout.conductor.conductor import Conductor
from tidemill_rollout.conductor.metrics import registry_of
from tidemill_rollout.conductor.store import Database

STUCK_SECONDS = 30.0
"""Without a pass for this long the loop hangs, and a probe should have the process restarted."""

LONGEST_POLL_SECONDS = 60.0


def routes(conductor: Conductor, trust: Credential | str) -> web.Application:
    async def tide(request: web.Request) -> web.Response:
        after = _number(request, "after", -1.0)
        await conductor.board.newer_than(int(after), min(_number(request, "wait", 0.0), LONGEST_POLL_SECONDS))
        return reply(conductor.tide)

    async def authority(request: web.Request) -> web.Response:
        told = await read(request, Authority)
        return reply(conductor.change(lambda db: controller.hold_term(db, conductor.holder, told, conductor.clock())))

    async def request_grant(request: web.Request) -> web.Response:
        told = await read(request, GrantRequest)
        grant = conductor.change(
            lambda db: controller.grant_on_request(db, conductor.settings, conductor.cells(db), conductor.holder, told, conductor.clock())
        )
        return reply(grant)

    async def grants(_: web.Request) -> web.Response:
        return reply([cell.grant() for cell in conductor.cells(conductor.store.db)])

    async def constraints(request: web.Request) -> web.Response:
        told = await read(request, Constraints)
        now, name = conductor.clock(), request.match_info["cell"]

        def constrain(db: Database) -> Grant:
            controller.check_term(db, conductor.holder, told.term, now)
            return controller.constrain(db, conductor.cells(db), name, told, now)

        return reply(conductor.change(constrain))

    async def settings(request: web.Request) -> web.Response:
        told = await read(request, SettingsChange)
        conductor.change(lambda db: controller.check_term(db, conductor.holder, told.term, conductor.clock()))
        conductor.change_settings(told)
        return reply(Nothing())

    async def suspend(request: web.Request) -> web.Response:
        told = await read(request, Suspend)
        conductor.change(lambda db: controller.check_term(db, conductor.holder, told.term, conductor.clock()))
        if told.resume:
            await conductor.resume()
        return reply(conductor.standing() if told.resume else await conductor.suspend())

    async def events(request: web.Request) -> web.Response:
        wait = min(_number(request, "wait", 0.0), LONGEST_POLL_SECONDS)
        told = await conductor.events(int(_number(request, "after", 0.0)), wait)
        return web.Response(body=told, content_type="application/x-ndjson")

    async def cell_state(request: web.Request) -> web.Response:
        told = await read(request, CellState)
        if told.cell != request.match_info["cell"]:
            raise Rejected(400, f"cell {request.match_info['cell']}: the body is the state of {told.cell}")
        return reply(conductor.report(told))

    async def leases(request: web.Request) -> web.Response:
        told = await read(request, LeaseRequest)
        return reply(await conductor.next_work(told, lambda: request.transport is not None and not request.transport.is_closing()))

    async def return_leases(request: web.Request) -> web.Response:
        told = await read(request, LeaseIds)
        conductor.change(lambda db: microsteps.give_back(db, told))
        return reply(Nothing())

    async def renew_leases(request: web.Request) -> web.Response:
        told = await read(request, LeaseIds)
        conductor.change(lambda db: microsteps.renew(db, told, conductor.clock()))
        return reply(Nothing())

    async def contribute(request: web.Request) -> web.Response:
        told = await read(request, Contribution)
        step = _step(request)
        if told.core_incarnation and not microsteps.is_newest(conductor.store.db, work.CORE, told.core_incarnation):
            raise Refused(f"step {step}: core trainer {told.core_incarnation} has been replaced; it must exit")
        conductor.change(lambda db: microsteps.count(db, step, told))
        return reply(Nothing())

    async def applied(request: web.Request) -> web.Response:
        conductor.applied(_step(request), await read(request, Applied))
        return reply(Nothing())

    async def published(request: web.Request) -> web.Response:
        conductor.published(await read(request, Published))
        return reply(Nothing())

    async def training(_: web.Request) -> web.Response:
        db = conductor.store.db
        committed, checkpoint, _mean = steps.last_committed(db)
        version = bursts.published(db)
        if version is None:
            return reply(TrainingState(committed, checkpoint, policy_version=-1, published_step=0, digest=""))
        return reply(TrainingState(committed, checkpoint, version.version, version.step, version.digest))

    async def turns(request: web.Request) -> web.Response:
        told = await read(request, Turns)
        if told.execution != request.match_info["execution"]:
            raise Rejected(400, f"execution {request.match_info['execution']}: the body has turns of {told.execution}")
        conductor.change(lambda db: executions.add_turns(db, told))
        return reply(Nothing())

    async def all_executions(_: web.Request) -> web.Response:
        return reply(views.executions_of(conductor.store.db, conductor.clock()))

    async def one_execution(request: web.Request) -> web.Response:
        name = request.match_info["execution"]
        found = [view for view in views.executions_of(conductor.store.db, conductor.clock()) if view.id == name]
        if not found:
            raise Rejected(404, f"execution {name}: this job has no such execution")
        return reply(found[0])

    async def healthz(_: web.Request) -> web.Response:
        silent = conductor.clock() - conductor.last_pass
        return web.Response(text="ok\n") if silent < STUCK_SECONDS else web.Response(status=503, text=f"no pass for {silent:.0f} s\n")

    app = application(trust)
    app.add_routes(
        [
            web.get("/v1/tide", tide),
            web.post("/v1/authority", authority),
            web.post("/v1/grants", request_grant),
            web.get("/v1/grants", grants),
            web.put("/v1/cells/{cell}/constraints", constraints),
            web.put("/v1/settings", settings),
            web.post("/v1/suspend", suspend),
            web.get("/v1/events", events),
            web.post("/v1/cells/{cell}/state", cell_state),
            web.post("/v1/leases", leases),
            web.post("/v1/leases/return", return_leases),
            web.post("/v1/leases/renew", renew_leases),
            web.post("/v1/steps/{step}/contributions", contribute),
            web.post("/v1/steps/{step}/applied", applied),
            web.post("/v1/publications", published),
            web.get("/v1/training", training),
            web.post("/v1/executions/{execution}/turns", turns),
            web.get("/v1/executions", all_executions),
            web.get("/v1/executions/{execution}", one_execution),
            web.get("/healthz", healthz),
            web.get("/metrics", metrics_of(registry_of(conductor))),
        ]
    )
    return app


def _number(request: web.Request, name: str, default: float) -> float:
    try:
        return float(request.query.get(name, default))
    except ValueError as cause:
        raise Rejected(400, f"{request.path}: {name}={request.query[name]} is not a number") from cause


def _step(request: web.Request) -> int:
    try:
        return int(request.match_info["step"])
    except ValueError as cause:
        raise Rejected(400, f"{request.path}: {request.match_info['step']} is not the number of a step") from cause

"""The processes around a cell agent, scripted: real HTTP, no engine and no torch. What is asked of them is written down in order."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from tidemill.wire.cell import CellClient, CellKind, CellPhase, CellState, Role, RoleOrder
from tidemill.wire.conductor import CellTide, ConductorClient, Grant, JobPhase, Tide
from tidemill.wire.engine import EngineClient, Generate, Sampled, Sampling
from tidemill.wire.engine_control import EngineControl, EngineState, Loaded, UpdateWeights
from tidemill.wire.gateway import Drain, Drained, GatewayClient, Route
from tidemill.wire.http import Board, Refused, Unreachable, application, read, reply, serve
from tidemill.wire.trainer import Join, Leave, MemoryDescriptor, Nothing, TrainerClient, TrainerState, WeightSnapshot
from tidemill_cell.agent import Agent, Pace
from tidemill_cell.children import Child, Health, Program
from tidemill_cell.identity import Identity, parse_name
from tidemill_cell.metrics import registry_of
from tidemill_cell.phases import Phases
from tidemill_cell.proxy import Proxy
from tidemill_cell.ranks import Ranks
from tidemill_cell.server import routes

TOKEN = "token"
DEADLINE_SECONDS = 20.0
PACE = Pace(report_seconds=0.2, route_seconds=0.1, conductor_pause_seconds=0.02, tide_rest_seconds=0.001)


class ScriptedChild(Child):
    """A child whose life is in the test's hands; its HTTP side is one of the scripted servers."""

    def __init__(self, name: str, session: aiohttp.ClientSession) -> None:
        super().__init__(Program(name, ("none",), {}, Path("/nonexistent"), ""), session, TOKEN)
        self.restarts: list[str] = []

    async def run(self) -> None:
        await asyncio.Event().wait()

    def up(self) -> None:
        self.starts += 1
        self.incarnation = f"{self.program.name}-{self.starts}"
        self._become(Health.HEALTHY)

    def down(self, health: Health = Health.DOWN) -> None:
        self._become(health)

    def restart(self, reason: str) -> None:
        self.restarts.append(reason)


@dataclass
class Script:
    """How one kind of call goes: it may be held until the test lets it go, or fail some times."""

    hold: bool = False
    failures: int = 0
    refusals: int = 0
    begun: int = 0
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self, what: str) -> None:
        self.begun += 1
        if self.hold:
            await self.released.wait()
        if self.failures > 0:
            self.failures -= 1
            raise Unreachable(f"{what} fails as scripted")
        if self.refusals > 0:
            self.refusals -= 1
            raise Refused(f"{what} is refused as scripted")


class World:
    """`asked` has the name of every call that changes something, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.violations: list[str] = []  # what must never happen, whatever the script
        self.scripts = {
            name: Script() for name in ("drain", "sleep", "join", "leave", "wake", "weights", "snapshot", "route", "report", "tide", "tide answer")
        }
        # engine
        self.asleep = False
        self.loaded: tuple[int, str] = (-1, "")
        self.loads_digest = ""  # what the engine computes, if not what was announced
        self.tokens = asyncio.Event()  # lets streams go on after their first token
        self.aborted = 0
        self.bodies: list[bytes] = []
        # trainer (of this cell, and core)
        self.joined = -1
        self.core_url_joined = ""
        self.snapshot_digest = ""  # what the core offers, if not what is published
        # gateway
        self.route: Route | None = None
        self.moved_with_tokens = 0
        # conductor
        self.published: tuple[int, str] | None = (0, "digest-0")
        self.grant: Grant | None = None
        self.reports: list[CellState] = []
        self.tides = Board()
        self.cordoned: tuple[str, ...] = ()
        self.core_address = ""  # if not where the scripted core listens

    def script(self, name: str) -> Script:
        return self.scripts[name]

    async def publish(self, version: int, digest: str = "") -> None:
        self.published = (version, digest or f"digest-{version}")
        await self.tides.bump()

    async def cordon(self, *cells: str) -> None:
        self.cordoned = cells
        await self.tides.bump()

    async def core_moves_to(self, url: str) -> None:
        self.core_address = url
        await self.tides.bump()

    def require(self, held: bool, otherwise: str) -> None:
        if not held:
            self.violations.append(otherwise)

    async def play(self, name: str, entry: str = "") -> None:
        await self.scripts[name].play(name)
        if entry:
            self.asked.append(entry)

    def engine_app(self) -> web.Application:
        app = application(TOKEN)

        def state() -> EngineState:
            return EngineState("cell-1", "engine", self.loaded[0], self.loaded[1], False, self.asleep, 0)

        async def sleep(_: web.Request) -> web.Response:
            await self.play("sleep", "sleep")
            self.asleep, self.loaded = True, (-1, "")
            return reply(state())

        async def wake(_: web.Request) -> web.Response:
            await self.play("wake", "wake")
            self.asleep = False
            return reply(state())

        async def weights(request: web.Request) -> web.Response:
            order = await read(request, UpdateWeights)
            self.require(not self.asleep, "weights into a sleeping engine")
            await self.play("weights", f"weights {order.snapshot.version}")
            self.loaded = (order.snapshot.version, self.loads_digest or order.snapshot.digest)
            return reply(Loaded(state(), {"pull": 0.1}))

        async def generate(request: web.Request) -> web.StreamResponse:
            self.bodies.append(await request.read())
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            try:
                await response.write(b'{"token_ids":[7],"logprobs":[-0.5],"versions":[0]}\n')
                await self.tokens.wait()
                await response.write(b'{"token_ids":[8],"logprobs":[-0.25],"versions":[0],"finish_reason":"stop"}\n')
            except asyncio.CancelledError:
                self.aborted += 1
                raise
            return response

        app.router.add_post("/control/v1/sleep", sleep)
        app.router.add_post("/control/v1/wake", wake)
        app.router.add_post("/control/v1/weights", weights)
        app.router.add_post("/inference/v1/generate", generate)
        return app

    def trainer_app(self) -> web.Application:
        app = application(TOKEN)

        def state() -> TrainerState:
            return TrainerState("cell-1", "trainer-incarnation", self.joined >= 0, self.joined, 0)

        async def get_state(_: web.Request) -> web.Response:
            return reply(state())

        async def join(request: web.Request) -> web.Response:
            order = await read(request, Join)
            self.require(self.route is None, "joined while calls may come in")
            await self.play("join", f"join {order.epoch}")
            self.joined, self.core_url_joined = order.epoch, order.core_url
            return reply(state())

        async def leave(request: web.Request) -> web.Response:
            order = await read(request, Leave)
            await self.play("leave", f"leave {order.epoch}")
            self.joined = -1
            return reply(state())

        async def snapshot(request: web.Request) -> web.Response:
            await self.play("snapshot")
            assert self.published is not None
            if int(request.query["version"]) != self.published[0]:
                raise Refused(f"version {request.query['version']} is gone")
            source = MemoryDescriptor("plain", "127.0.0.1:9", 0, 0)
            return reply(WeightSnapshot(0, self.published[0], self.snapshot_digest or self.published[1], (), source))

        app.router.add_get("/v1/state", get_state)
        app.router.add_post("/v1/join", join)
        app.router.add_post("/v1/leave", leave)
        app.router.add_get("/v1/weights", snapshot)
        return app

    def gateway_app(self) -> web.Application:
        app = application(TOKEN)

        async def route(request: web.Request) -> web.Response:
            put = await read(request, Route)
            await self.play("route")
            self.require(self.joined == -1, "routed while training")
            self.require(self.loaded[0] == put.version, "routed without the weights of the route")
            if put != self.route:
                self.asked.append(f"route {put.epoch} {put.version}")
            self.route = put
            return reply(Nothing())

        async def drain(request: web.Request) -> web.Response:
            order = await read(request, Drain)
            await self.play("drain", f"drain {order.epoch} {','.join(order.destinations)}".strip())
            self.route, moved, self.moved_with_tokens = None, self.moved_with_tokens, 0
            return reply(Drained(moved, moved))

        app.router.add_put("/v1/routes/{cell}", route)
        app.router.add_post("/v1/cells/{cell}/drain", drain)
        return app

    def conductor_app(self, core_url: str) -> web.Application:
        app = application(TOKEN)

        async def report(request: web.Request) -> web.Response:
            state = await read(request, CellState)
            await self.scripts["report"].play("report")
            self.reports.append(state)
            return reply(self.grant or Grant(state.cell, Role.ROLLOUT, 0))

        async def tide(request: web.Request) -> web.Response:
            await self.scripts["tide"].play("tide")
            await self.tides.newer_than(int(request.query["after"]), float(request.query["wait"]))
            await self.scripts["tide answer"].play("tide")
            version, digest = self.published or (0, "")
            return reply(
                Tide(
                    sequence=self.tides.sequence,
                    job="job",
                    mode="Elastic",
                    phase=JobPhase.RUNNING,
                    step=0,
                    steps=1,
                    burst=0,
                    policy_version=version,
                    dispatched=0,
                    started=0,
                    terminated=0,
                    ready_groups=0,
                    staleness_max=0,
                    cells=tuple(CellTide(name, 0, 4, Role.ROLLOUT, 0, usable=False, cordoned=True) for name in self.cordoned),
                    core_url=self.core_address or core_url,
                    weights_digest=digest,
                )
            )

        app.router.add_post("/v1/cells/{cell}/state", report)
        app.router.add_get("/v1/tide", tide)
        return app


@dataclass
class Cell:
    """A live agent in a scripted world."""

    world: World
    agent: Agent
    engine: ScriptedChild
    trainer: ScriptedChild
    client: CellClient
    calls: EngineClient

    def engine_dies(self) -> None:
        self.world.loaded = (-1, "")
        self.engine.down()

    def engine_comes_up(self) -> None:
        """Awake and without verified weights, as every new engine."""
        self.world.asleep, self.world.loaded = False, (-1, "")
        self.engine.up()

    def trainer_dies(self) -> None:
        self.world.joined = -1
        self.trainer.down()

    async def order(self, role: Role, epoch: int, *destinations: str) -> CellState:
        return await self.client.put_role(RoleOrder(role, epoch, destinations))

    async def state_when(self, reached: Callable[[CellState], bool], what: str) -> CellState:
        """The first state that is as wanted, by long polls."""
        state, end = await self.client.state(), time.monotonic() + DEADLINE_SECONDS
        while not reached(state):
            assert time.monotonic() < end, f"not within {DEADLINE_SECONDS:g} s: {what}; last state: {state}; asked: {self.world.asked}"
            state = await self.client.state(state.sequence, wait_seconds=0.5)
        return state

    async def ready(self, role: Role, epoch: int) -> CellState:
        return await self.state_when(lambda s: (s.phase, s.role, s.epoch) == (CellPhase.READY, role, epoch), f"ready in {role} {epoch}")

    async def until(self, reached: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while not reached():
            assert time.monotonic() < end, f"not within {DEADLINE_SECONDS:g} s: {what}; asked: {self.world.asked}"
            await asyncio.sleep(0.005)

    async def call(self, epoch: int) -> list[Sampled]:
        request = Generate("call-1", (1, 2, 3), Sampling(max_tokens=8), epoch)
        return [sampled async for sampled in self.calls.generate(request, idle_seconds=DEADLINE_SECONDS)]


@contextlib.asynccontextmanager
async def living(name: str = "cell-1", world: World | None = None, *, children_up: bool = True, nodes: int = 1) -> AsyncIterator[Cell]:
    """An agent and everything around it. A task of the agent that dies fails the test."""
    world = world or World()
    kind, ordinal = parse_name(name)
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))

        async def start(app: web.Application) -> str:
            runner = await serve(app, "127.0.0.1", 0, cancel_when_caller_leaves=True)
            stack.push_async_callback(runner.cleanup)
            return f"http://127.0.0.1:{runner.addresses[0][1]}"

        engine_url, trainer_url = await start(world.engine_app()), await start(world.trainer_app())
        gateway_url, conductor_url = await start(world.gateway_app()), await start(world.conductor_app(trainer_url))
        engine, trainer = ScriptedChild("engine", session), ScriptedChild("trainer", session)
        has_trainer = kind is not CellKind.STANDALONE
        trainer_client = TrainerClient(trainer_url, TOKEN, session) if has_trainer else None
        identity = Identity(name, kind, ordinal, "http://agent", capacity=4, job="tiny")
        conductor = ConductorClient(conductor_url, TOKEN, session)
        agent = Agent(identity, engine, trainer if has_trainer else None, trainer_client, conductor, PACE, Ranks(name, nodes))
        proxy = Proxy(engine_url, TOKEN, session, agent.refusal)
        phases = Phases(
            identity,
            GatewayClient(gateway_url, TOKEN, session),
            EngineControl(engine_url, TOKEN, session),
            trainer_client,
            lambda url: TrainerClient(url, TOKEN, session),
            proxy,
            ledger=agent.ledger,
        )
        agent.live_calls, proxy.on_change = (lambda: proxy.live_calls), agent.account
        agent_url = await start(routes(agent, proxy, registry_of(agent, proxy), TOKEN))
        life = asyncio.create_task(agent.run(phases))
        cell = Cell(world, agent, engine, trainer, CellClient(agent_url, TOKEN, session), EngineClient(agent_url, TOKEN, session))
        try:
            if children_up:
                engine.up()
                trainer.up()
            yield cell
            if life.done():
                life.result()
            assert not world.violations
        finally:
            life.cancel()
            await asyncio.wait((life,))

"""A whole job around a real conductor over real HTTP: agents, trainers, gateway and sandboxes are stand-ins that obey the contracts and do no work.

The trainers add micro-step ids instead of gradients, so that "each counts exactly once" can be read off the weights.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tests.ports import free_port
from tidemill.policy.burst import Plan
from tidemill.policy.decide import Mode
from tidemill.telemetry.events import AnyEvent, read_events
from tidemill.trajectory.records import Piece, Turn
from tidemill.wire.cell import CellKind, CellPhase, CellState, Flip, Role, RoleOrder
from tidemill.wire.conductor import Applied, ConductorClient, Contribution, JobPhase, LeaseIds, LeaseRequest, Published, Tide, Work
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import Closed, GatewayClient, GatewayState, OpenExecution, Turns
from tidemill.wire.http import Refused, Unreachable, WireError, application, read, reply, serve
from tidemill.wire.trainer import Nothing
from tidemill_rollout.conductor.conductor import Conductor, Place
from tidemill_rollout.conductor.sandboxes import EvaluatorCrashed
from tidemill_rollout.conductor.server import routes
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Store

TOKEN = "the-job"  # as in the gateway's world: some tests put parts of both together


def settings(**changes: Any) -> Settings:
    """Two groups of two executions a step, two steps a burst, one step of prefetch, four steps; two cells of four places."""
    usual = Settings(
        job="tiny",
        mode=Mode.ELASTIC,
        plan=Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=1, steps=4),
        rollouts_per_group=2,
        streaming=True,
        async_training_cells=1,
        max_staleness=1,
        drop_stale=False,
        cells=2,
        standalone=0,
        capacity=4,
        harness="react",
        sampling=Sampling(max_tokens=16),
        call_seconds=30.0,
        execution_seconds=60.0,
        group_seconds=120.0,
        drop_at_group_timeout=False,
        most_paths=5,
        seed=1,
        executions_per_held_out_task=0,
    )
    return replace(usual, **changes)


@dataclass(frozen=True)
class Ended:
    exit_code: int = 0
    timed_out: bool = False
    stopped: str = ""
    log_tail: str = ""


@dataclass(frozen=True)
class Score:
    score: float | None
    reason: str = "tests ended"
    valid: bool = True
    digest: str = "blake2b:00"


def turn(execution: str, attempt: int, name: str = "t1", parent: str = "", version: int = 0) -> Turn:
    piece = Piece("cell-1", (5, 6, 7), (-0.1, -0.2, -0.3), (version,) * 3)
    return Turn(name, execution, attempt, parent, "", (1, 2), (piece,), "stop", 0.0, 1.0, "chat")


@dataclass
class Sandboxes:
    """Every harness calls the model once and is scored by its place in the group. `behave` may do anything else instead."""

    turns: Callable[[Turns], object] | None = None
    behave: Callable[[str, int], Ended | None] = lambda execution, attempt: None
    score: Callable[[str, int], float | None] = lambda execution, attempt: float(execution[-1] == "0")
    crashes: dict[str, int] = field(default_factory=dict)  # execution -> evaluations that crash
    nothing_to_judge: frozenset[str] = frozenset()
    gate: asyncio.Event = field(default_factory=asyncio.Event)  # harnesses wait for it
    waits: Callable[[str], bool] = lambda execution: True  # for the gate
    runs: list[tuple[str, int]] = field(default_factory=list)
    seconds: Callable[[str], float] = lambda execution: 0.002
    deadlines: dict[str, float] = field(default_factory=dict)
    discarded: list[tuple[str, int]] = field(default_factory=list)
    alive: int = 0
    most_alive: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    async def run(self, execution: str, attempt: int, task: str, key: str, deadline_seconds: float) -> Ended:
        self.runs.append((execution, attempt))
        self.deadlines[execution] = deadline_seconds
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        try:
            await asyncio.sleep(self.seconds(execution))
            if self.waits(execution):
                await self.gate.wait()
            ended = self.behave(execution, attempt)
            if ended is None and self.turns is not None:
                self.turns(Turns(execution, attempt, (turn(execution, attempt),)))
            return ended or Ended()
        finally:
            self.alive -= 1

    async def evaluate(self, execution: str, attempt: int, task: str) -> Score:
        if self.crashes.get(execution, 0) > 0:
            self.crashes[execution] -= 1
            raise EvaluatorCrashed("tests wrote no reward")
        return Score(self.score(execution, attempt), valid=execution not in self.nothing_to_judge)

    def work(self, execution: str, attempt: int) -> str:
        return f"executions/{execution}/{attempt}/work"

    async def discard(self, execution: str, attempt: int) -> None:
        self.discarded.append((execution, attempt))

    async def stop_all(self) -> None:
        pass


class Gateway:
    """Keeps turns until the execution is closed, then brings them to the conductor, again and again."""

    def __init__(self, conductor: ConductorClient) -> None:
        self._conductor = conductor
        self._journal: dict[tuple[str, int], Turns] = {}
        self.open: dict[str, int] = {}
        self.call_seconds: set[float] = set()  # of all executions that were opened
        self.condition = ""

    def keep(self, turns: Turns) -> None:
        self._journal[turns.execution, turns.attempt] = turns

    def application(self) -> web.Application:
        async def opened(request: web.Request) -> web.Response:
            told = await read(request, OpenExecution)
            self.open[told.execution] = told.attempt
            self.call_seconds.add(told.call_seconds)
            return reply(Nothing())

        async def close(request: web.Request) -> web.Response:
            execution, attempt = request.match_info["execution"], int(request.query["attempt"])
            turns = self._journal.get((execution, attempt))
            while turns:
                with contextlib.suppress(Unreachable):
                    await self._conductor.turns(turns)
                    break
                await asyncio.sleep(0.02)
            self.open.pop(execution, None)
            return reply(Closed(execution, len(turns.turns) if turns else 0))

        async def state(_: web.Request) -> web.Response:
            return reply(GatewayState(0, 0, 0, 0, 0, {}, self.condition))

        app = application(TOKEN)
        app.add_routes(
            [web.put("/v1/executions/{execution}", opened), web.post("/v1/executions/{execution}/close", close), web.get("/v1/state", state)]
        )
        return app


@dataclass
class Trainer:
    """Sums are lists of micro-step ids. `core` is the one that takes in the sums, itself for cell-0."""

    cell: str
    conductor: ConductorClient
    core: Trainer | None = None
    incarnation: str = "trainer-1"
    weights: list[list[str]] = field(default_factory=list)  # core: the ids in each step
    sum: list[str] = field(default_factory=list)  # core: ids counted in the open step
    epoch: int = 0
    training: bool = False
    in_hand: list[tuple[str, str]] = field(default_factory=list)  # lease, id
    computed: int = 0
    micro_step_seconds: float = 0.001
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)
    counts: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def is_core(self) -> bool:
        return self.core is None

    async def run(self) -> None:
        while True:
            if not self.is_core and not self.training:
                await asyncio.sleep(0.01)
                continue
            step = len(self.weights) if self.is_core else -1
            wait = 0.0 if self.in_hand else 0.2
            holding = tuple(lease for lease, _ in self.in_hand)
            try:
                request = LeaseRequest(self.cell, self.epoch, self.incarnation, 1, step, wait, holding)
                answer = await self.conductor.lease(request)
            except Unreachable:
                await asyncio.sleep(0.02)
                continue
            except Refused:
                self.in_hand, self.training = [], False
                await asyncio.sleep(0.02)
                continue
            match answer.work:
                case Work.COMPUTE:
                    self.computed += len(answer.micro_steps)
                    self.in_hand += [(m.lease, m.id) for m in answer.micro_steps]
                    await asyncio.sleep(self.micro_step_seconds)
                    if not self.training:
                        await self.give_back()  # told to leave while the answer was on its way
                    elif len(self.in_hand) >= 3:
                        await self.hand_over(answer.step)
                case Work.WAIT:
                    await self.hand_over(answer.step)
                case Work.APPLY:
                    assert len(self.sum) == answer.count
                    self.weights.append(self.sum)
                    self.sum = []
                    digest = f"digest-{len(self.weights)}"
                    seconds = self.micro_step_seconds * answer.count
                    applied = Applied(f"step-{answer.step + 1}", digest, {"loss": 0.0, "computeSeconds": seconds})
                    await self.insist(partial(self.conductor.applied, answer.step, applied))
                case Work.PUBLISH:
                    digest = f"digest-{len(self.weights)}"
                    await self.insist(partial(self.conductor.published, Published(answer.version, answer.step, digest)))
                case Work.OVER:
                    await self.hand_over(answer.step)
                    self.training = False

    async def hand_over(self, step: int) -> None:
        """The core counts what it was handed to the end, whatever becomes of who handed it over."""
        if not self.in_hand:
            return
        core = self.core or self
        leases, ids = zip(*self.in_hand, strict=True)
        counting = asyncio.create_task(core.count(step, Contribution(self.cell, self.epoch, leases, core.incarnation), ids))
        core.counts.add(counting)
        counting.add_done_callback(core.counts.discard)
        await asyncio.wait({counting})
        if not counting.cancelled():  # the core lives
            counting.result()
        self.in_hand = []

    async def count(self, step: int, contribution: Contribution, ids: tuple[str, ...]) -> None:
        async with self.counting:
            with contextlib.suppress(Refused):
                await self.insist(lambda: self.conductor.contribute(step, contribution))
                if self.incarnation == contribution.core_incarnation:  # else it was told to a process that has died since, and its sum with it
                    self.sum += ids

    async def give_back(self) -> None:
        """Its grant has ended: what it has in hand is for others."""
        leases, self.in_hand = tuple(lease for lease, _ in self.in_hand), []
        if leases:
            await self.insist(lambda: self.conductor.return_leases(LeaseIds(self.cell, leases)))

    async def insist(self, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await call()
                return
            except Unreachable:
                await asyncio.sleep(0.02)

    async def come_back(self) -> None:
        """What is not in committed weights is lost with the process."""
        while True:
            try:
                committed = (await self.conductor.training()).committed_step
                break
            except Unreachable:
                await asyncio.sleep(0.02)
        number = int(self.incarnation.removeprefix("trainer-")) + 1
        self.incarnation, self.in_hand, self.sum, self.counting = f"trainer-{number}", [], [], asyncio.Lock()
        del self.weights[committed:]


class Agent:
    """Obeys at once: one short phase, then it acknowledges."""

    def __init__(self, cell: str, ordinal: int, capacity: int, conductor: ConductorClient, trainer: Trainer) -> None:
        kind = CellKind.CORE if cell == "cell-0" else CellKind.STANDALONE if cell.startswith("standalone") else CellKind.SATELLITE
        self.state = CellState(cell, kind, ordinal, "", CellPhase.STARTING, Role.ROLLOUT, 0, capacity, engine_incarnation="engine-1")
        self.trainer = trainer
        self.stuck = False  # in the next flip
        self.on_return: Callable[[], None] | None = None  # called when it is told to leave training, before it does anything about it
        self.mute = False  # as a process that is stopped
        self.flip_seconds = 0.001
        self._conductor = conductor
        self._order: RoleOrder | None = None

    def application(self) -> web.Application:
        async def put_role(request: web.Request) -> web.Response:
            order = await read(request, RoleOrder)
            if self._order is not None and order.epoch < self._order.epoch:
                raise Refused(f"epoch {order.epoch} is older than {self._order.epoch}")
            self._order = order
            return reply(self.state, 202)

        app = application(TOKEN)
        app.add_routes([web.put("/v1/role", put_role)])
        return app

    async def run(self) -> None:
        while True:
            if self.mute:
                await asyncio.sleep(0.02)
                continue
            with contextlib.suppress(WireError):
                grant = await self._conductor.report_cell(self.state)
                if self._order is None or grant.epoch > self._order.epoch:
                    self._order = RoleOrder(grant.role, grant.epoch, grant.destinations)
                await self._obey(await self._conductor.tide())
            await asyncio.sleep(0.01)

    async def _obey(self, tide: Tide) -> None:
        order, state = self._order, self.state
        if self.on_return and order and (state.role, order.role) == (Role.TRAINING, Role.ROLLOUT):
            self.on_return()
        if order is None or self.stuck:
            return
        if order.epoch != state.epoch or order.role is not state.role:
            started = time.time()
            self.trainer.training = False
            await asyncio.sleep(self.flip_seconds)
            if order.role is Role.TRAINING:
                self.trainer.epoch, self.trainer.training = order.epoch, True
            else:
                await self.trainer.give_back()
            flip = (
                Flip(state.cell, order.role, order.epoch, started, self.flip_seconds, {"drain": self.flip_seconds})
                if state.role is not order.role
                else state.last_flip
            )
            self.state = state = msgspec.structs.replace(state, role=order.role, epoch=order.epoch, last_flip=flip)
        if order.role is Role.ROLLOUT and tide.policy_version >= 0:
            self.state = msgspec.structs.replace(state, policy_version=tide.policy_version, weights_digest=tide.weights_digest, phase=CellPhase.READY)
        elif order.role is Role.TRAINING:
            self.state = msgspec.structs.replace(state, phase=CellPhase.READY)


class World:
    def __init__(self, folder: Path, how: Settings, tasks: tuple[str, ...], held_out: tuple[str, ...], sandboxes: Sandboxes) -> None:
        self.folder = folder
        self.how = how
        self.place = Place(folder, tasks, held_out, cores_shared=True, credential=TOKEN)
        self.sandboxes = sandboxes
        self.agents: list[Agent] = []
        self.trainers: dict[str, Trainer] = {}
        self.training: dict[str, asyncio.Task[None]] = {}
        self.port = 0
        self.session: aiohttp.ClientSession
        self.client: ConductorClient
        self.gateway: Gateway
        self.gateway_client: GatewayClient

    @property
    def events(self) -> list[AnyEvent]:
        return list(read_events(self.folder / "metrics.jsonl"))

    def of[E](self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.store.db.execute(sql)]

    async def start_conductor(self, retry_failed: bool = False) -> None:
        self.store = Store(self.folder / "conductor.db")
        self._stop = asyncio.Event()
        started = asyncio.get_running_loop().create_future()

        async def live() -> None:
            async with asyncio.TaskGroup() as tasks:
                self.conductor = Conductor(self.how, self.place, self.store, self.sandboxes, self.gateway_client, self.session, tasks)
                await self.conductor.start(retry_failed)
                runner = await serve(routes(self.conductor, TOKEN), "127.0.0.1", self.port)
                started.set_result(None)
                try:
                    await self._stop.wait()
                    await self.conductor.stop()
                finally:
                    await runner.cleanup()

        self._life = asyncio.create_task(live())
        await asyncio.wait({self._life, started}, return_when=asyncio.FIRST_COMPLETED)
        if self._life.done():
            await self._life

    async def kill_conductor(self) -> None:
        """As kill -9 does: nothing is said goodbye to, harnesses die with it."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)
        self.store.close()

    async def stop_conductor(self) -> None:
        self._stop.set()
        await self._life
        self.store.close()

    async def kill_trainer(self, cell: str) -> None:
        tasks = (self.training[cell], *self.trainers[cell].counts)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.trainers[cell].come_back()
        self.training[cell] = asyncio.create_task(self.trainers[cell].run())

    async def until(self, holds: Callable[[Tide], bool], seconds: float = 30.0) -> Tide:
        """Wait for a reading of the tide; what takes the conductor or a trainer down is raised here."""
        try:
            async with asyncio.timeout(seconds):
                seen = -1
                while True:
                    with contextlib.suppress(Unreachable):
                        tide = await self.client.tide(seen, 0.5)
                        seen = tide.sequence
                        if holds(tide):
                            return tide
                    for task in (self._life, *self.training.values()):
                        if task.done():
                            await task
        except TimeoutError as cause:
            raise AssertionError(f"this did not come about within {seconds:g} s; the last reading was {self.conductor.tide}") from cause

    async def to_the_end(self, seconds: float = 30.0) -> Tide:
        return await self.until(lambda tide: tide.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED), seconds)


@asynccontextmanager
async def world(
    folder: Path,
    how: Settings,
    tasks: tuple[str, ...] = ("one", "two", "three"),
    held_out: tuple[str, ...] = (),
    sandboxes: Sandboxes | None = None,
) -> AsyncIterator[World]:
    (folder / "trajectories").mkdir()
    (folder / "checkpoints").mkdir()
    self = World(folder, how, tasks, held_out, sandboxes or Sandboxes())
    self.port = free_port()
    runners, running = [], []
    async with aiohttp.ClientSession() as session:
        self.session = session
        self.client = ConductorClient(f"http://127.0.0.1:{self.port}", TOKEN, session)
        self.gateway = Gateway(self.client)
        self.sandboxes.turns = self.gateway.keep
        port = free_port()
        runners.append(await serve(self.gateway.application(), "127.0.0.1", port))
        self.gateway_client = GatewayClient(f"http://127.0.0.1:{port}", TOKEN, session)
        names = [(f"cell-{n}", n) for n in range(how.cells)] + [(f"standalone-{n}", n) for n in range(how.standalone)]
        for name, ordinal in names:
            trainer = Trainer(name, self.client, self.trainers.get("cell-0"))
            self.trainers[name] = trainer
            agent = Agent(name, ordinal, how.capacity, self.client, trainer)
            port = free_port()
            runners.append(await serve(agent.application(), "127.0.0.1", port))
            agent.state = msgspec.structs.replace(agent.state, url=f"http://127.0.0.1:{port}", trainer_url=f"http://trainer-of-{name}")
            self.agents.append(agent)
        await self.start_conductor()
        try:
            running = [asyncio.create_task(a.run()) for a in self.agents]
            self.training = {name: asyncio.create_task(t.run()) for name, t in self.trainers.items() if not name.startswith("standalone")}
            yield self
        finally:
            running += [*self.training.values(), *(count for trainer in self.trainers.values() for count in trainer.counts)]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            if not self._life.done():
                await self.stop_conductor()
            for runner in runners:
                await runner.cleanup()

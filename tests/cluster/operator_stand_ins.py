"""A conductor and agents that speak the real protocol and check what they are told: terms, epochs that only grow, the rule of the waterlevel.

They have no engines and no store; what the job does (executions finish, a burst ends) is said by the test.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession, web

from tidemill.policy.decide import Mode, to_train
from tidemill.wire.cell import CellKind, CellPhase, CellState, Flip, Role, RoleOrder
from tidemill.wire.conductor import (
    Authority,
    CellTide,
    ConductorClient,
    Constraints,
    Grant,
    GrantRequest,
    JobPhase,
    SettingsChange,
    Suspend,
    Suspended,
    Term,
    Tide,
)
from tidemill.wire.http import Board, Refused, application, read, reply, serve
from tidemill.wire.rules import for_rules
from tidemill.wire.trainer import Nothing

SECRET = "of-the-tests"
TERM_SECONDS = 15.0
CAPACITY = 8


@dataclass
class ConductorStandIn:
    """The truth about grants: one writer, epochs that only grow."""

    cells: list[str]
    dispatched: int = 16
    terminated: int = 0
    groups_due: int = 2
    steps: int = 3
    step: int = 0
    burst: int = 1
    phase: JobPhase = JobPhase.RUNNING
    ended: str = ""
    suspended: bool = False
    term: int = 0
    holder: str = ""
    expires: float = 0.0
    url: str = ""
    grants: dict[str, Grant] = field(default_factory=dict)
    states: dict[str, CellState] = field(default_factory=dict)
    constraints: dict[str, Constraints] = field(default_factory=dict)
    issued: list[Grant] = field(default_factory=list)  # every grant ever made
    settings: list[SettingsChange] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.board = Board()
        self.grants = {cell: Grant(cell, Role.ROLLOUT, 1) for cell in self.cells}

    # --- what the test makes the job do ---

    async def finish(self, executions: int) -> None:
        self.terminated = min(self.dispatched, self.terminated + executions)
        await self.board.bump()

    async def end_burst(self) -> None:
        """All cells return to rollout by the terms of their grants; the next burst's work is dispatched."""
        for grant in list(self.grants.values()):
            if grant.role is Role.TRAINING:
                self.issue(grant.cell, Role.ROLLOUT)
        self.step, self.burst = self.step + 1, self.burst + 1
        self.dispatched += 16
        await self.board.bump()

    async def finish_job(self, phase: JobPhase = JobPhase.SUCCEEDED) -> None:
        self.phase, self.ended = phase, "told by the test"
        await self.board.bump()

    def tide(self) -> Tide:
        return Tide(
            sequence=self.board.sequence,
            job="job",
            mode="Elastic",
            phase=self.phase,
            step=self.step,
            steps=self.steps,
            burst=self.burst,
            policy_version=self.burst - 1,
            dispatched=self.dispatched,
            started=self.dispatched,
            terminated=self.terminated,
            ready_groups=0,
            staleness_max=0,
            cells=tuple(self._cell(cell) for cell in self.cells),
            controller=self.holder if time.monotonic() < self.expires else "conductor",
            term=self.term,
            groups_due=self.groups_due,
            ended=self.ended,
            suspended=self.suspended,
        )

    def _cell(self, cell: str) -> CellTide:
        grant, state = self.grants[cell], self.states.get(cell)
        settled = state is not None and (state.role, state.epoch, state.phase) == (grant.role, grant.epoch, CellPhase.READY)
        constraint = self.constraints.get(cell, Constraints(0))
        return CellTide(
            cell,
            int(cell.rsplit("-", 1)[1]),
            CAPACITY,
            grant.role,
            grant.epoch,
            state,
            cell.startswith("standalone"),
            usable=state is not None and not constraint.cordon,
            settled=settled,
            pinned=constraint.pin,
            cordoned=constraint.cordon,
        )

    def issue(self, cell: str, role: Role) -> Grant:
        grant = Grant(cell, role, self.grants[cell].epoch + 1, tuple(c for c in reversed(self.cells) if c != cell))
        self.grants[cell] = grant
        self.issued.append(grant)
        return grant

    def _hold(self, told: Authority) -> Term:
        if told.term and (told.holder, told.term) != (self.holder, self.term):
            raise Refused(f"term {told.term} of {told.holder}: term {self.term} of {self.holder} is the current one")
        if not told.term:
            if time.monotonic() < self.expires and self.holder != told.holder:
                raise Refused(f"{self.holder} holds term {self.term}")
            self.term, self.holder = self.term + 1, told.holder
        self.expires = time.monotonic() + TERM_SECONDS
        return Term(self.holder, self.term, TERM_SECONDS)

    def _check(self, term: int) -> None:
        if term != self.term or time.monotonic() > self.expires:
            self.refused.append(f"term {term}")
            raise Refused(f"term {term}: the current term is {self.term}")

    def _request(self, told: GrantRequest) -> Grant:
        self._check(told.term)
        current = self.grants[told.cell]
        if current.role is told.role:
            return current
        if told.role is Role.ROLLOUT or told.cell not in to_train(Mode.ELASTIC, for_rules(self.tide())):
            self.refused.append(told.cell)
            raise Refused(f"cell {told.cell}: may not leave rollout now")
        return self.issue(told.cell, told.role)

    def routes(self) -> web.Application:
        async def tide(request: web.Request) -> web.Response:
            await self.board.newer_than(int(request.query.get("after", "-1")), min(float(request.query.get("wait", "0")), 60.0))
            return reply(self.tide())

        async def authority(request: web.Request) -> web.Response:
            return reply(self._hold(await read(request, Authority)))

        async def grant(request: web.Request) -> web.Response:
            granted = self._request(await read(request, GrantRequest))
            await self.board.bump()
            return reply(granted)

        async def grants(_: web.Request) -> web.Response:
            return reply(list(self.grants.values()))

        async def state(request: web.Request) -> web.Response:
            told = await read(request, CellState)
            known = self.states.get(told.cell)
            assert known is None or told.epoch >= known.epoch, "an agent went back to an older epoch"
            self.states[told.cell] = told
            await self.board.bump()
            return reply(self.grants[told.cell])

        async def constrain(request: web.Request) -> web.Response:
            told = await read(request, Constraints)
            self._check(told.term)
            self.constraints[request.match_info["cell"]] = told
            await self.board.bump()
            return reply(self.grants[request.match_info["cell"]])

        async def settings(request: web.Request) -> web.Response:
            told = await read(request, SettingsChange)
            self._check(told.term)
            self.settings.append(told)
            self.steps = told.steps or self.steps
            await self.board.bump()
            return reply(Nothing())

        async def suspend(request: web.Request) -> web.Response:
            told = await read(request, Suspend)
            self._check(told.term)
            self.suspended = not told.resume
            await self.board.bump()
            return reply(Suspended(self.step, self.burst - 1, self.dispatched - self.terminated))

        async def events(request: web.Request) -> web.Response:
            return web.Response(body=b'{"kind":"JobEnded"}\n'[int(request.query.get("after", "0")) :])

        app = application(SECRET)
        app.add_routes(
            [
                web.get("/v1/tide", tide),
                web.post("/v1/authority", authority),
                web.post("/v1/grants", grant),
                web.get("/v1/grants", grants),
                web.post("/v1/cells/{cell}/state", state),
                web.put("/v1/cells/{cell}/constraints", constrain),
                web.put("/v1/settings", settings),
                web.post("/v1/suspend", suspend),
                web.get("/v1/events", events),
            ]
        )
        return app


@dataclass
class AgentStandIn:
    """Takes orders and acknowledges; it remembers every role it ever acknowledged, by epoch."""

    cell: str
    conductor: ConductorClient
    url: str = ""
    role: Role = Role.ROLLOUT
    epoch: int = 1
    acknowledged: dict[int, Role] = field(default_factory=lambda: {1: Role.ROLLOUT})
    orders: list[RoleOrder] = field(default_factory=list)
    last_flip: Flip | None = None

    def state(self) -> CellState:
        ordinal = int(self.cell.rsplit("-", 1)[1])
        kind = CellKind.CORE if self.cell == "cell-0" else CellKind.STANDALONE if self.cell.startswith("standalone") else CellKind.SATELLITE
        return CellState(self.cell, kind, ordinal, self.url, CellPhase.READY, self.role, self.epoch, CAPACITY, 0, last_flip=self.last_flip)

    async def obey(self, order: RoleOrder) -> None:
        """As the real one: an older epoch is refused, the same again is no news."""
        if order.epoch < self.epoch:
            raise Refused(f"epoch {order.epoch} is older than {self.epoch}")
        self.orders.append(order)
        if order.epoch == self.epoch:
            assert order.role is self.role, f"two roles for epoch {order.epoch}"
            return
        self.role, self.epoch = order.role, order.epoch
        assert self.epoch not in self.acknowledged
        self.acknowledged[self.epoch] = self.role
        self.last_flip = Flip(self.cell, self.role, self.epoch, time.time(), 0.01, {"all": 0.01})
        await self.conductor.report_cell(self.state())

    def routes(self) -> web.Application:
        async def role(request: web.Request) -> web.Response:
            await self.obey(await read(request, RoleOrder))
            return reply(self.state(), 202)

        app = application(SECRET)
        app.add_routes([web.put("/v1/role", role)])
        return app


@dataclass(frozen=True)
class Processes:
    conductor: ConductorStandIn
    agents: dict[str, AgentStandIn]

    async def grant_by_itself(self, cell: str, role: Role) -> None:
        """As when no operator holds the term: the conductor decides, and the agent learns of it when it reports."""
        grant = self.conductor.issue(cell, role)
        await self.agents[cell].obey(RoleOrder(grant.role, grant.epoch, grant.destinations))


@asynccontextmanager
async def processes(cells: list[str], **conductor: Any) -> AsyncIterator[Processes]:
    """The conductor and an agent for each cell, on ports of this machine, reporting to each other."""
    standing = ConductorStandIn(cells, **conductor)
    runner = await serve(standing.routes(), "127.0.0.1", 0)
    standing.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    runners, agents = [runner], {}
    async with ClientSession() as session:
        for cell in cells:
            agent = AgentStandIn(cell, ConductorClient(standing.url, SECRET, session))
            runner = await serve(agent.routes(), "127.0.0.1", 0)
            agent.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            runners.append(runner)
            agents[cell] = agent
            await agent.conductor.report_cell(agent.state())
        try:
            yield Processes(standing, agents)
        finally:
            for runner in runners:
                await runner.cleanup()

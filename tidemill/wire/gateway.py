"""Messages of the gateway: executions are opened and closed by the conductor, routes come and go with the cells' roles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import msgspec

from tidemill.trajectory.records import Turn
from tidemill.wire.engine import Sampling
from tidemill.wire.http import Client
from tidemill.wire.shards import shard_of
from tidemill.wire.trainer import Nothing
from tidemill.wire.trust import Credential

ATTEMPT_HEADER = "Tidemill-Attempt"
"""With what a sandbox fetches and brings, the gateway tells the conductor whose key was shown."""


class OpenExecution(msgspec.Struct, frozen=True):
    """`PUT /v1/executions/{id}`: the key is valid from now until `close`. Idempotent for the same attempt."""

    execution: str
    attempt: int
    key: str
    harness: str  # name of the preset
    sampling: Sampling  # the job's; a harness may ask for fewer tokens, nothing else
    deadline: float  # unix seconds, after which calls are refused
    call_seconds: float = 0.0  # deadline of each of its calls; 0: what the gateway was started with
    model: bool = True  # False: an evaluator, which has files to fetch and to bring, and no model to call


class Closed(msgspec.Struct, frozen=True):
    """Answers `POST /v1/executions/{id}/close`: the key is dead, live calls are cancelled, the conductor has every journaled turn."""

    execution: str
    turns: int


class Route(msgspec.Struct, frozen=True):
    """`PUT /v1/routes/{cell}`: calls may go to this cell; its engine holds verified weights of `version`."""

    cell: str
    epoch: int
    version: int
    url: str  # of the cell agent
    capacity: int
    ordinal: int = 0


class Drain(msgspec.Struct, frozen=True):
    """`POST /v1/cells/{cell}/drain`: no new calls there, those in flight go on elsewhere."""

    epoch: int
    destinations: tuple[str, ...] = ()


class Drained(msgspec.Struct, frozen=True):
    moved: int  # calls that were stopped here and resubmitted elsewhere
    moved_with_tokens: int  # of these, calls that had sampled at least one token here


class GatewayState(msgspec.Struct, frozen=True):
    """`GET /v1/state`: for the live view and the conductor. Counters since the journal was made."""

    live_calls: int
    calls: int
    resubmitted_calls: int  # answers to which two engines each sampled at least one token
    recomputed_tokens: int  # prompt and sampled tokens whose KV a second engine computed again
    attached_retries: int
    routes: dict[str, int]  # cell -> epoch
    condition: str = ""  # "" or why it holds turns back, e.g. the journal's disk is full


class Turns(msgspec.Struct, frozen=True):
    """`POST conductor/v1/executions/{id}/turns`: finished turns, at least once; the conductor drops what it has by turn id."""

    execution: str
    attempt: int
    turns: tuple[Turn, ...]


class GatewayClient(Client):
    async def open(self, execution: OpenExecution) -> Nothing:
        return await self.call("PUT", f"/v1/executions/{execution.execution}", Nothing, execution)

    async def close(self, execution: str, attempt: int) -> Closed:
        return await self.call("POST", f"/v1/executions/{execution}/close", Closed, query={"attempt": str(attempt)}, deadline_seconds=60.0)

    async def put_route(self, route: Route) -> Nothing:
        return await self.call("PUT", f"/v1/routes/{route.cell}", Nothing, route)

    async def drain(self, cell: str, order: Drain, deadline_seconds: float = 60.0) -> Drained:
        return await self.call("POST", f"/v1/cells/{cell}/drain", Drained, order, deadline_seconds=deadline_seconds)

    async def state(self) -> GatewayState:
        return await self.call("GET", "/v1/state", GatewayState)


class Gateways(GatewayClient):
    """All gateways of a job, by their numbers: an execution is opened and closed at its own, routes and drains go to all."""

    def __init__(self, urls: Sequence[str], caller: Credential | str, session: aiohttp.ClientSession) -> None:
        super().__init__(urls[0], caller, session)
        self._each = tuple(GatewayClient(url, caller, session) for url in urls)

    async def open(self, execution: OpenExecution) -> Nothing:
        return await self._of(execution.execution).open(execution)

    async def close(self, execution: str, attempt: int) -> Closed:
        return await self._of(execution).close(execution, attempt)

    async def put_route(self, route: Route) -> Nothing:
        await self._all(lambda gateway: gateway.put_route(route))
        return Nothing()

    async def drain(self, cell: str, order: Drain, deadline_seconds: float = 60.0) -> Drained:
        drained = await self._all(lambda gateway: gateway.drain(cell, order, deadline_seconds))
        return Drained(sum(one.moved for one in drained), sum(one.moved_with_tokens for one in drained))

    async def state(self) -> GatewayState:
        states = await self._all(lambda gateway: gateway.state())
        everywhere = set.intersection(*(set(state.routes) for state in states))
        return GatewayState(
            live_calls=sum(state.live_calls for state in states),
            calls=sum(state.calls for state in states),
            resubmitted_calls=sum(state.resubmitted_calls for state in states),
            recomputed_tokens=sum(state.recomputed_tokens for state in states),
            attached_retries=sum(state.attached_retries for state in states),
            routes={cell: min(state.routes[cell] for state in states) for cell in sorted(everywhere)},
            condition="; ".join(dict.fromkeys(state.condition for state in states if state.condition)),
        )

    def _of(self, execution: str) -> GatewayClient:
        return self._each[shard_of(execution, len(self._each))]

    async def _all[T](self, ask: Callable[[GatewayClient], Awaitable[T]]) -> list[T]:
        """Every one is asked, also when another does not answer; then that is raised, and the caller asks all again."""
        answers = await asyncio.gather(*(ask(gateway) for gateway in self._each), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

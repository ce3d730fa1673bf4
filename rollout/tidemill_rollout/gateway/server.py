"""What harnesses reach: `/x/{execution}/...`, with the execution's key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
from aiohttp import web

from tidemill.telemetry.logs import Log
from tidemill_rollout.gateway.conversation import Answer, Ask, Away, Fault, joined
from tidemill_rollout.gateway.execution import Call, Execution
from tidemill_rollout.gateway.executions import Gateway
from tidemill_rollout.gateway.peers import Peers
from tidemill_rollout.gateway.receiving import MAX_BODY_BYTES, Receiver, one_of
from tidemill_rollout.gateway.rounds import Rounds
from tidemill_rollout.gateway.sandboxes import ROUTES, Files
from tidemill_rollout.gateway.tally import WIRE
from tidemill_rollout.gateway.wires import chat, messages, responses
from tidemill_rollout.sandbox.relay import CALL_HEADER, DELIVERED_HEADER

PULSE_SECONDS = 15.0
"""An answer that takes longer is begun, and kept alive at this pace. What fails sooner fails with a status of its own."""

WRITE_SECONDS = 120.0
"""A harness that does not read its answer for so long has hung up."""

log = Log(__name__)


class Reply(Protocol):
    """One answer on its way to one connection, in the shape of its wire."""

    def whole(self, answer: Answer) -> bytes: ...
    def opening(self, prompt_tokens: int) -> bytes: ...
    def pulse(self) -> bytes: ...
    def closing(self, answer: Answer) -> bytes: ...
    def failure(self, fault: Fault) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Wire:
    name: str
    elements: str  # field of a request that holds the conversation
    parse: Callable[[bytes, Mapping[str, str]], Ask]
    error: Callable[[Fault], bytes]
    reply: Callable[[Ask], Reply]


_CHAT = Wire("chat", "messages", chat.parse, chat.error, chat.Reply)
_MESSAGES = Wire("messages", "messages", messages.parse, messages.error, messages.Reply)
_RESPONSES = Wire("responses", "input", responses.parse, responses.error, responses.Reply)


class HarnessSide:
    """What a sandbox can reach."""

    def __init__(self, gateway: Gateway, peers: Peers, pulse_seconds: float = PULSE_SECONDS, files: Files | None = None) -> None:
        self._gateway = gateway
        self._peers = peers
        self._receiver = Receiver()
        self._rounds = Rounds()
        self._pulse_seconds = pulse_seconds
        self._files = files

    def application(self) -> web.Application:
        """Everything under `/x`. A new one each time: aiohttp lets an application have one parent only."""
        app = web.Application()
        app.router.add_route("*", "/{execution}/{tail:.*}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        response = await self._dispatch(request)
        if wire := request.get(WIRE):
            self._gateway.tally.requests[wire, response.status] += 1
        return response

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        execution = request.match_info["execution"]
        tail = request.match_info["tail"].removeprefix("v1/").rstrip("/")
        wire = _RESPONSES if tail == "responses" else _CHAT
        if tail.startswith("messages") or "anthropic-version" in request.headers:
            wire = _MESSAGES
        if request.method == "HEAD":  # Claude Code asks `HEAD {base}/api/hello` before anything else, without a key
            return web.Response()
        try:
            files = (request.method, request.match_info["tail"]) in ROUTES
            if not self._gateway.knows(execution) and (url := self._peers.of(request, execution)):
                return await self._peers.pass_on(request, url, files=files)
            if self._files is not None and files:
                opened = self._gateway.admit(execution, _key(request)).opened
                return await self._files.pass_on(request, opened, request.match_info["tail"])
            request[WIRE] = wire.name
            match request.method, tail:
                case "POST", "chat/completions" | "messages" | "responses":
                    return await self._converse(request, wire)
                case "POST", "messages/count_tokens":
                    return await self._count_tokens(request, wire)
                case "GET", "models":
                    return self._models(request)
            routes = "v1/chat/completions, v1/responses, v1/messages and v1/models"
            raise Fault(404, f"{request.method} {request.path}: there is no such route; there are {routes}")
        except Fault as fault:
            if _asks_again(request, fault):
                _abort(request)
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            return web.Response(body=wire.error(fault), status=fault.status, headers=headers, content_type="application/json")

    async def _converse(self, request: web.Request, wire: Wire) -> web.StreamResponse:
        execution = self._admit(request)
        with one_of(execution):
            call, ask = await self._begin(execution, wire, request)
            return await self._answer(request, wire, call, ask)

    async def _begin(self, execution: Execution, wire: Wire, request: web.Request) -> tuple[Call, Ask]:
        """The call, and what its answer's shape follows. Neither body nor messages are held while it is sampled."""
        body = await self._receiver.body(request)

        def begin() -> tuple[Call, Ask]:
            reading = self._gateway.read(execution, wire.parse, wire.elements, body, request.headers)
            return self._gateway.call(execution, reading), msgspec.structs.replace(reading.ask, messages=())

        return await self._rounds.do(begin)

    async def _answer(self, request: web.Request, wire: Wire, call: Call, ask: Ask) -> web.StreamResponse:
        if relayed := request.headers.get(CALL_HEADER):
            call.relayed.add(relayed)
        settled = await self._settles(call)
        answer = _result(call) if settled else None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"} if ask.stream else {})
        if not ask.stream:
            response.content_type = "application/json"
        try:
            await self._deliver(request, response, call, ask, wire.reply(ask), answer)
        except (ConnectionError, TimeoutError):
            log.info("the harness hung up, its answer is kept for a retry", execution=call.execution.name, turn=call.turn)
            _abort(request)
        return response

    async def _deliver(self, request: web.Request, response: web.StreamResponse, call: Call, ask: Ask, out: Reply, answer: Answer | None) -> None:
        """Send the answer in one burst. Until it is there, give signs of life."""
        async with asyncio.timeout(WRITE_SECONDS):
            await response.prepare(request)
        first = out.opening(call.prompt_tokens) if ask.stream else b""
        if answer is None:
            await _write(response, first or b" ")
            first = b""
            while not await self._settles(call):
                await _write(response, out.pulse() if ask.stream else b" ")
            try:
                answer = _result(call)
            except Fault as fault:
                if not ask.stream or _asks_again(request, fault):  # the status has been sent: only a broken connection still tells of a failure
                    _abort(request)
                    return
                await _write(response, out.failure(fault), last=True)
                return
        burst = first + (out.closing(answer) if ask.stream else out.whole(answer))
        await _write(response, burst, last=True)
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("closed while the answer was sent")
        if not call.relayed:
            self._gateway.delivered(call)

    async def _settles(self, call: Call) -> bool:
        """Whether the call comes to its end within one pulse. A harness that hangs up does not end it."""
        done, _ = await asyncio.wait({call.outcome}, timeout=self._pulse_seconds)
        return bool(done)

    def _admit(self, request: web.Request) -> Execution:
        """The execution of this request, which may say as well which answers have reached the harness."""
        execution = self._gateway.admit(request.match_info["execution"], _key(request))
        for relayed in filter(None, request.headers.get(DELIVERED_HEADER, "").split(",")):
            self._gateway.acknowledge(execution, relayed)
        return execution

    async def _count_tokens(self, request: web.Request, wire: Wire) -> web.Response:
        with one_of(self._admit(request)):
            ask = wire.parse(await self._receiver.body(request), request.headers)
            ask = msgspec.structs.replace(ask, messages=joined(ask.messages))
            return _json({"input_tokens": await self._gateway.count_tokens(ask)})

    def _models(self, request: web.Request) -> web.Response:
        """One list that both wires' clients read."""
        self._admit(request)
        epoch = {"created": 0, "created_at": "1970-01-01T00:00:00Z"}
        model = {"id": "policy", "object": "model", "type": "model", "display_name": "policy", "owned_by": "tidemill", **epoch}
        return _json({"object": "list", "data": [model], "has_more": False, "first_id": "policy", "last_id": "policy"})


def sandbox_application(harnesses: HarnessSide) -> web.Application:
    """What the Unix socket serves: harnesses, nothing else."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_subapp("/x", harnesses.application())
    return app


async def _write(response: web.StreamResponse, data: bytes, *, last: bool = False) -> None:
    """What a harness does not read stays in the socket's buffers, and here nothing more is made for it."""
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(data)
        if last:
            await response.write_eof()


def _key(request: web.Request) -> str:
    return request.headers.get("x-api-key") or request.headers.get("Authorization", "").removeprefix("Bearer ").strip()


def _result(call: Call) -> Answer:
    if call.outcome.cancelled():
        raise Away("the gateway is stopping")
    failure = call.outcome.exception()
    if failure is not None and not isinstance(failure, Fault):
        raise Fault(500, "the gateway failed on this call; its log has the reason") from failure
    return call.outcome.result()


def _asks_again(request: web.Request, fault: Fault) -> bool:
    """Whether a relay would, of a connection that breaks."""
    return isinstance(fault, Away) and CALL_HEADER in request.headers


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")

"""The gateway's HTTP surface: `/x/{execution}/...` for harnesses, with the execution's key; `/v1/...` for our own processes, with the job's token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
from aiohttp import web

from tidemill.telemetry.logs import Log
from tidemill.wire.gateway import Drain, OpenExecution, Route
from tidemill.wire.http import Rejected, application, read, reply
from tidemill.wire.trainer import Nothing
from tidemill.wire.trust import Credential
from tidemill_rollout.gateway.conversation import Answer, Ask, Fault
from tidemill_rollout.gateway.executions import Call, Gateway
from tidemill_rollout.gateway.sandboxes import ROUTES, Files
from tidemill_rollout.gateway.wires import chat, messages

MAX_BODY_BYTES = 32 * 2**20

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
    parse: Callable[[bytes, Mapping[str, str]], Ask]
    error: Callable[[Fault], bytes]
    reply: Callable[[Ask], Reply]


_CHAT = Wire(chat.parse, chat.error, chat.Reply)
_MESSAGES = Wire(messages.parse, messages.error, messages.Reply)


class HarnessSide:
    """What a sandbox can reach."""

    def __init__(self, gateway: Gateway, pulse_seconds: float = PULSE_SECONDS, files: Files | None = None) -> None:
        self._gateway = gateway
        self._pulse_seconds = pulse_seconds
        self._files = files

    def application(self) -> web.Application:
        """Everything under `/x`. A new one each time: aiohttp lets an application have one parent only."""
        app = web.Application()
        app.router.add_route("*", "/{execution}/{tail:.*}", self._dispatch)
        return app

    async def _dispatch(self, request: web.Request) -> web.StreamResponse:
        tail = request.match_info["tail"].removeprefix("v1/").rstrip("/")
        wire = _MESSAGES if tail.startswith("messages") or "anthropic-version" in request.headers else _CHAT
        if request.method == "HEAD":  # Claude Code asks `HEAD {base}/api/hello` before anything else, without a key
            return web.Response()
        try:
            if self._files is not None and (request.method, request.match_info["tail"]) in ROUTES:
                opened = self._gateway.admit(request.match_info["execution"], _key(request)).opened
                return await self._files.pass_on(request, opened, request.match_info["tail"])
            match request.method, tail:
                case "POST", "chat/completions" | "messages":
                    return await self._converse(request, wire)
                case "POST", "messages/count_tokens":
                    return await self._count_tokens(request, wire)
                case "GET", "models":
                    return self._models(request)
            raise Fault(404, f"{request.method} {request.path}: there is no such route; there are v1/chat/completions, v1/messages and v1/models")
        except Fault as fault:
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            return web.Response(body=wire.error(fault), status=fault.status, headers=headers, content_type="application/json")

    async def _converse(self, request: web.Request, wire: Wire) -> web.StreamResponse:
        execution = self._gateway.admit(request.match_info["execution"], _key(request))
        ask = wire.parse(await _body(request), request.headers)
        try:
            call = self._gateway.call(execution, ask)
        except RecursionError as cause:  # just shallow enough to be read, too deep to be written again
            raise Fault(400, "the request is nested too deep") from cause
        settled = await self._settles(call)
        answer = _result(call) if settled else None
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"} if ask.stream else {})
        if not ask.stream:
            response.content_type = "application/json"
        try:
            await self._deliver(request, response, call, ask, wire.reply(ask), answer)
        except (ConnectionError, TimeoutError):
            log.info("the harness hung up, its answer is kept for a retry", execution=execution.opened.execution, turn=call.turn)
            _abort(request)
        return response

    async def _deliver(self, request: web.Request, response: web.StreamResponse, call: Call, ask: Ask, out: Reply, answer: Answer | None) -> None:
        """Send the answer in one burst. Until it is there, give signs of life."""
        await response.prepare(request)
        first = out.opening(call.prompt_tokens) if ask.stream else b""
        if answer is None:
            await response.write(first or b" ")
            first = b""
            while not await self._settles(call):
                await response.write(out.pulse() if ask.stream else b" ")
            try:
                answer = _result(call)
            except Fault as fault:
                if not ask.stream:  # the status has been sent: only a broken connection still tells of a failure
                    _abort(request)
                    return
                await response.write(out.failure(fault))
                await response.write_eof()
                return
        burst = first + (out.closing(answer) if ask.stream else out.whole(answer))
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(burst)
            await response.write_eof()
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("closed while the answer was sent")
        self._gateway.delivered(call)

    async def _settles(self, call: Call) -> bool:
        """Whether the call comes to its end within one pulse. A harness that hangs up does not end it."""
        done, _ = await asyncio.wait({call.outcome}, timeout=self._pulse_seconds)
        return bool(done)

    async def _count_tokens(self, request: web.Request, wire: Wire) -> web.Response:
        self._gateway.admit(request.match_info["execution"], _key(request))
        ask = wire.parse(await _body(request), request.headers)
        return _json({"input_tokens": await self._gateway.count_tokens(ask)})

    def _models(self, request: web.Request) -> web.Response:
        """One list that both wires' clients read."""
        self._gateway.admit(request.match_info["execution"], _key(request))
        epoch = {"created": 0, "created_at": "1970-01-01T00:00:00Z"}
        model = {"id": "policy", "object": "model", "type": "model", "display_name": "policy", "owned_by": "tidemill", **epoch}
        return _json({"object": "list", "data": [model], "has_more": False, "first_id": "policy", "last_id": "policy"})


def sandbox_application(harnesses: HarnessSide) -> web.Application:
    """What the Unix socket serves: harnesses, nothing else."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_subapp("/x", harnesses.application())
    return app


def full_application(gateway: Gateway, harnesses: HarnessSide, trust: Credential | str) -> web.Application:
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

    async def metrics(request: web.Request) -> web.Response:
        now = gateway.state()
        counted = {
            "live_calls": now.live_calls,
            "calls_total": now.calls,
            "resubmitted_calls_total": now.resubmitted_calls,
            "recomputed_tokens_total": now.recomputed_tokens,
            "attached_retries_total": now.attached_retries,
            "routes": len(now.routes),
            "held_back": int(bool(now.condition)),
        }
        return web.Response(text="".join(f"tidemill_gateway_{name} {value}\n" for name, value in counted.items()))

    internal = application(trust)
    internal.router.add_put("/executions/{execution}", open_execution)
    internal.router.add_post("/executions/{execution}/close", close_execution)
    internal.router.add_put("/routes/{cell}", put_route)
    internal.router.add_post("/cells/{cell}/drain", drain)
    internal.router.add_get("/state", state)
    app = sandbox_application(harnesses)
    app.add_subapp("/v1", internal)
    app.router.add_get("/healthz", health)
    app.router.add_get("/metrics", metrics)
    return app


def _key(request: web.Request) -> str:
    return request.headers.get("x-api-key") or request.headers.get("Authorization", "").removeprefix("Bearer ").strip()


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as cause:
        raise Fault(413, f"the request is larger than {MAX_BODY_BYTES >> 20} MiB") from cause


def _result(call: Call) -> Answer:
    if call.outcome.cancelled():
        raise Fault(503, "the gateway is stopping", retry_after=2)
    failure = call.outcome.exception()
    if failure is not None and not isinstance(failure, Fault):
        raise Fault(500, "the gateway failed on this call; its log has the reason") from failure
    return call.outcome.result()


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")


def _same(what: str, path: str, body: str) -> None:
    if path != body:
        raise Rejected(400, f"{what} is {path} in the path and {body} in the body")

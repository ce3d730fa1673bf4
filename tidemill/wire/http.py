"""JSON over HTTP/1.1 between our own processes: one client, one way to read a body, one shape of error.

Every call has a deadline and carries a bearer token. A refusal (409) is an answer, not an accident: it is raised as
`Refused` with the reason, so that callers handle it by name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tidemill.wire.trust import Credential, credential

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DEFAULT_DEADLINE_SECONDS = 10.0
CONNECT_SECONDS = 5.0
"""Packets to a pod that has just died, or that no policy lets through yet, are dropped: the next attempt may find more."""

MAX_BODY_BYTES = 256 * 2**20


class WireError(Exception):
    """A call to another process did not succeed."""


class Unreachable(WireError):
    """No answer within the deadline, or no connection. The call may or may not have had an effect: repeat it, all calls are idempotent."""


class Refused(WireError):
    """The other side answered 409: the epoch, term or lease is older than what it holds, or the rule says no. Nothing has changed."""


class Rejected(WireError):
    """The other side answered with another error status: the call is wrong, repeating it will not help."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Problem(msgspec.Struct, frozen=True):
    """The body of every error answer."""

    error: str


class Client:
    """Calls one process. The subclass beside each process's messages names its endpoints. A plain string is a secret that both share."""

    def __init__(self, base_url: str, caller: Credential | str, session: aiohttp.ClientSession) -> None:
        self.base_url = base_url.rstrip("/")
        self._credential = credential(caller)
        self._session = session

    async def call[T](
        self,
        method: str,
        path: str,
        answer: type[T],
        body: msgspec.Struct | None = None,
        *,
        query: dict[str, str] | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> T:
        """Send `body`, return the decoded `answer`.

        Raises:
            Unreachable: no answer within `deadline_seconds`, or a 5xx.
            Refused: status 409.
            Rejected: any other error status, or an answer that is not of type `answer`.
        """
        data = None if body is None else msgspec.json.encode(body)
        status, raw = await self._exchange(method, path, data, query, deadline_seconds)
        try:
            return msgspec.json.decode(raw or b"null", type=answer)
        except msgspec.MsgspecError as cause:
            raise Rejected(status, f"{method} {self.base_url}{path}: the answer is not a {answer.__name__}: {cause}") from cause

    async def fetch(self, path: str, query: dict[str, str] | None = None, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> bytes:
        """The bytes that `path` answers. Raises what `call` raises."""
        _, raw = await self._exchange("GET", path, None, query, deadline_seconds)
        return raw

    def headers(self) -> dict[str, str]:
        return self._credential.headers() | {"Content-Type": "application/json"}

    async def _exchange(self, method: str, path: str, data: bytes | None, query: dict[str, str] | None, deadline_seconds: float) -> tuple[int, bytes]:
        url = self.base_url + path
        headers = self.headers()
        timeout = aiohttp.ClientTimeout(total=deadline_seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(method, url, data=data, params=query, headers=headers, timeout=timeout) as response:
                raw = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            raise Unreachable(f"{method} {url}: no answer within {deadline_seconds:g} s ({type(cause).__name__}: {cause})") from cause
        if status == 409:
            raise Refused(_reason(raw))
        if status >= 500:
            raise Unreachable(f"{method} {url}: status {status}: {_reason(raw)}")
        if status >= 400:
            raise Rejected(status, f"{method} {url}: status {status}: {_reason(raw)}")
        return status, raw


def _reason(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=Problem).error
    except msgspec.MsgspecError:
        return raw[:500].decode(errors="replace")


async def read[T](request: web.Request, kind: type[T]) -> T:
    """The request's body as a message. Raises `Rejected` (400) that names the field when it is not one."""
    raw = await request.read()
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as cause:
        raise Rejected(400, f"{request.path}: not a {kind.__name__}: {cause}") from cause


def reply(message: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(message), status=status, content_type="application/json")


def application(trust: Credential | str, public_paths: tuple[str, ...] = ("/healthz", "/readyz", "/metrics")) -> web.Application:
    """An aiohttp application that answers only those it trusts, and `Refused` and `Rejected` in our shape. A plain string is a shared secret."""
    trusted = credential(trust)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in public_paths and (reason := trusted.refusal(request.headers.get("Authorization", ""))):
            return reply(Problem(f"{request.path}: {reason}"), 401)
        try:
            return await handler(request)
        except Refused as refusal:
            return reply(Problem(str(refusal)), 409)
        except Rejected as rejection:
            return reply(Problem(str(rejection)), rejection.status)
        except Unreachable as trouble:
            return reply(Problem(str(trouble)), 503)

    return web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)


async def serve(
    app: web.Application, host: str, port: int, unix_socket: str | None = None, *, cancel_when_caller_leaves: bool = False
) -> web.AppRunner:
    """Start `app`; the caller awaits `runner.cleanup()` at the end. Raises OSError when the port is taken."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, handler_cancellation=cancel_when_caller_leaves)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    if unix_socket is not None:
        await web.UnixSite(runner, unix_socket).start()
    return runner


class Board:
    """A value with a sequence number, for long polls: readers wait until it is newer than what they have seen."""

    def __init__(self) -> None:
        self.sequence = 0
        self._changed = asyncio.Condition()

    async def bump(self) -> None:
        async with self._changed:
            self.sequence += 1
            self._changed.notify_all()

    async def newer_than(self, seen: int, wait_seconds: float) -> int:
        """Return the sequence as soon as it exceeds `seen`, or as it is after `wait_seconds`."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: self.sequence > seen), wait_seconds)
            return self.sequence

"""The generate route: bytes pass from the gateway to the engine and back, if the epoch still holds."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import aiohttp
import msgspec
from aiohttp import web

from tidemill.wire.http import Refused, Rejected, Unreachable
from tidemill.wire.trust import Credential, credential

_CONNECT_SECONDS = 5.0
_METRICS_SECONDS = 10.0


class _Envelope(msgspec.Struct):
    """The only field of `tidemill.wire.engine.Generate` that the agent reads; the rest is checked by the engine."""

    epoch: int = 0


_read_envelope = msgspec.msgpack.Decoder(_Envelope)


class Proxy:
    """`refusal` says why a call of an epoch is not served here ("" when it is); the gate is asked once, when the call comes in."""

    def __init__(self, engine_url: str, caller: Credential | str, session: aiohttp.ClientSession, refusal: Callable[[int], str]) -> None:
        self.calls = 0
        self._url = engine_url + "/inference/v1/generate"
        self._metrics_url = engine_url + "/metrics"
        self._credential = credential(caller)
        self._session = session
        self._refusal = refusal
        self._live: set[asyncio.Task[object]] = set()
        self.on_change: Callable[[], None] = lambda: None  # from no call to some, or back

    @property
    def live_calls(self) -> int:
        return len(self._live)

    def cut(self) -> int:
        """End what still streams, before the engine sleeps. The gateway goes on elsewhere with the tokens it has."""
        for call in self._live:
            call.cancel()
        return len(self._live)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            envelope = _read_envelope.decode(body)
        except msgspec.MsgspecError as cause:
            raise Rejected(400, f"{request.path}: not a Generate: {cause}") from cause
        if reason := self._refusal(envelope.epoch):
            raise Refused(reason)
        call = asyncio.current_task()
        assert call is not None
        self.calls += 1
        self._live.add(call)
        if len(self._live) == 1:
            self.on_change()
        try:
            return await self._pass_through(request, body)
        finally:
            self._live.discard(call)
            if not self._live:
                self.on_change()

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """The engine's own, which listens where nobody else reaches it."""
        timeout = aiohttp.ClientTimeout(total=_METRICS_SECONDS, sock_connect=_CONNECT_SECONDS)
        headers = {"Accept": request.headers.get("Accept", "*/*")}
        try:
            async with self._session.get(self._metrics_url, headers=headers, timeout=timeout) as upstream:
                body = await upstream.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            raise Unreachable(f"{self._metrics_url}: the engine does not answer ({type(cause).__name__}: {cause})") from cause
        return web.Response(status=upstream.status, body=body, headers={"Content-Type": upstream.headers.get("Content-Type", "text/plain")})

    async def _pass_through(self, request: web.Request, body: bytes) -> web.StreamResponse:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)  # how long silence may last is the gateway's to say
        headers = self._credential.headers() | {"Content-Type": "application/msgpack"}
        try:
            async with self._session.post(self._url, data=io.BytesIO(body), headers=headers, timeout=timeout) as upstream:
                return await _pass_back(request, upstream)
        except (aiohttp.ClientError, TimeoutError, OSError) as cause:
            raise Unreachable(f"{self._url}: the engine does not answer ({type(cause).__name__}: {cause})") from cause


async def _pass_back(request: web.Request, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    """Chunk by chunk, as they come. A stream that breaks ends here without its last line, which tells the gateway that it was cut."""
    response = web.StreamResponse(status=upstream.status, headers={"Content-Type": upstream.headers.get("Content-Type", "application/x-ndjson")})
    await response.prepare(request)
    try:
        async for chunk in upstream.content.iter_any():
            await response.write(chunk)
    except aiohttp.ClientError:
        pass
    return response

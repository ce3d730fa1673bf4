"""Requests for an execution of another gateway are passed on to it, as they come, in both directions. Same rules there: it asks for the key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from tidemill.telemetry.logs import Log
from tidemill.wire.shards import shard_of
from tidemill_rollout.gateway.conversation import Away, Fault
from tidemill_rollout.gateway.receiving import MAX_BODY_BYTES

PASSED_ON_HEADER = "Tidemill-Passed-On"
"""A request that has it is passed on no further: while gateways are added, two of them may think of each other."""

SILENCE_SECONDS = 120.0
"""A peer gives signs of life every 15 s, a harness that takes nothing for so long has hung up."""

CONNECT_SECONDS = 5.0

_HOP = frozenset(("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "host", "content-length", "date", "server"))

log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Peers:
    """`urls`: of all gateways; `own` is this one's number."""

    urls: tuple[str, ...]
    own: int
    session: aiohttp.ClientSession

    def of(self, request: web.Request, execution: str) -> str:
        """Where a request for an execution belongs that is not known here; "" is here."""
        if len(self.urls) < 2 or PASSED_ON_HEADER in request.headers:
            return ""
        shard = shard_of(execution, len(self.urls))
        return "" if shard == self.own else self.urls[shard]

    async def pass_on(self, request: web.Request, url: str, *, files: bool = False) -> web.StreamResponse:
        """`files`: of a sandbox, which may be large. Raises `Away` when the other gateway does not answer."""
        if not files and request.content_length is not None and request.content_length > MAX_BODY_BYTES:
            raise Fault(413, f"the request is larger than {MAX_BODY_BYTES >> 20} MiB")
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        headers.append((PASSED_ON_HEADER, "1"))
        if request.content_length is not None:
            headers.append(("Content-Length", str(request.content_length)))
        body = _chunks(request) if request.can_read_body else None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        response: web.StreamResponse | None = None
        try:
            target = url + request.raw_path
            async with self.session.request(request.method, target, data=body, headers=headers, timeout=timeout, auto_decompress=False) as answer:
                response = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in _HOP:
                        response.headers.add(name, value)
                response.content_length = answer.content_length
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    async with asyncio.timeout(SILENCE_SECONDS):
                        await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError, OSError) as trouble:
            log.warning("a request was not passed on", gateway=url, reason=repr(trouble))
            if response is None or not response.prepared:
                raise Away("the gateway of this execution does not answer") from trouble
            if request.transport is not None:  # half of it has been sent: only a broken connection still tells
                request.transport.abort()
            return response


async def _chunks(request: web.Request) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(SILENCE_SECONDS):
            chunk = await request.content.readany()
        if not chunk:
            return
        yield chunk

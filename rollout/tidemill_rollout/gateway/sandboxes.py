"""The way of a sandbox's files: `GET /x/{execution}/sandbox/task` and `PUT /x/{execution}/sandbox/work`, passed on to the conductor as they come.

These two and nothing else of the conductor can be reached from a sandbox, and only with the key of an execution that is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol
from urllib.parse import quote

import aiohttp
from aiohttp import web

from tidemill.telemetry.logs import Log
from tidemill.wire.gateway import ATTEMPT_HEADER, OpenExecution
from tidemill.wire.trust import Credential, credential
from tidemill_rollout.gateway.conversation import Fault

ROUTES = {("GET", "sandbox/task"), ("PUT", "sandbox/work")}

SILENCE_SECONDS = 60.0
"""Either side that neither sends nor takes anything for so long is gone."""

TOTAL_SECONDS = 1800.0
CHUNK_BYTES = 2**18

_PASSED_ON = ("Content-Length", "Content-Type", "Tidemill-Seconds")

log = Log(__name__)


class Files(Protocol):
    async def pass_on(self, request: web.Request, opened: OpenExecution, what: str) -> web.StreamResponse: ...


class SandboxFiles:
    def __init__(self, conductor_url: str, token: Credential | str, session: aiohttp.ClientSession) -> None:
        self._url = conductor_url.rstrip("/")
        self._credential = credential(token)
        self._session = session

    async def pass_on(self, request: web.Request, opened: OpenExecution, what: str) -> web.StreamResponse:
        """Raises `Fault` (503) when the conductor does not answer."""
        url = f"{self._url}/v1/executions/{quote(opened.execution, safe='')}/{what}"
        headers = {**self._credential.headers(), ATTEMPT_HEADER: str(opened.attempt)}
        body = None
        if request.method == "PUT":
            body = _chunks(request)
            headers["Content-Type"] = "application/x-tar"
        timeout = aiohttp.ClientTimeout(total=TOTAL_SECONDS, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS if body is None else None)
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(request.method, url, data=body, headers=headers, timeout=timeout, auto_decompress=False) as answer:
                response = web.StreamResponse(status=answer.status)
                for name in _PASSED_ON:
                    if name in answer.headers:
                        response.headers[name] = answer.headers[name]
                await response.prepare(request)
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    async with asyncio.timeout(SILENCE_SECONDS):
                        await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, TimeoutError, OSError) as trouble:
            log.warning("a sandbox's files did not get through", execution=opened.execution, what=what, reason=repr(trouble))
            if response is None or not response.prepared:
                raise Fault(503, "the conductor does not answer", retry_after=2) from trouble
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

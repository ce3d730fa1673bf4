"""A proxy between a client and the API server that makes trouble on command, and counts what goes through.

A client goes through it with `api_server.kubeconfig_for(account, namespace, proxy.url)`: its token travels along, a client certificate would not. It
runs in a thread of its own, so tests that block (kubectl) and tests on an event loop use it alike.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from aiohttp import ClientConnectionError, ClientResponse, ClientSession, ClientTimeout, TCPConnector, web
from yarl import URL

from tests.cluster.api_server import ApiServer
from tests.cluster.calls import Call, parse

_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_HOP_BY_HOP = {"connection", "content-length", "host", "transfer-encoding"}
_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_NO_LIMIT = 1_000_000_000
_STOP_SECONDS = 10


@dataclass
class Fault:
    """What happens to the next `count` requests whose method and path match (both regular expressions, the whole method, any part of the path)."""

    method: str = ".*"
    path: str = ""
    count: int = _NO_LIMIT
    verb: str = ""  # when given: get, list, watch, create, ...
    delay_seconds: float = 0.0
    status: int = 0  # answer with it, and ask the API server nothing
    retry_after_seconds: int = 0
    lose_answer: bool = False  # let the API server do it, then break the connection
    stale: bool = False  # answer a list as it was answered first
    swallow_events: int = 0  # do not pass on the next events of a watch
    hits: int = field(default=0, init=False)

    def takes(self, method: str, path: str, call: Call) -> bool:
        """Whether it strikes this request; then one of its count is used up."""
        if self.hits >= self.count or self.verb not in ("", call.verb) or not (re.fullmatch(self.method, method) and re.search(self.path, path)):
            return False
        self.hits += 1
        return True


@dataclass(frozen=True, slots=True, eq=False)
class _OpenWatch:
    call: Call
    request: web.Request
    response: web.StreamResponse


class FaultProxy:
    """`url` is where clients connect; `calls` is all they asked, answered or not."""

    def __init__(self, server: ApiServer) -> None:
        self.url = ""
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self._server = server
        self._lists: dict[tuple[int, str], tuple[int, bytes, str]] = {}
        self._watches: list[_OpenWatch] = []
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    def count(self, verb: str = ".*", resource: str = ".*", namespace: str = "") -> int:
        """Calls so far whose verb and resource match these regular expressions as a whole."""
        matching = (c for c in self.calls if re.fullmatch(verb, c.verb) and re.fullmatch(resource, c.resource))
        return sum(namespace in ("", c.namespace) for c in matching)

    def add(self, fault: Fault) -> Fault:
        """From now on; the earliest that matches a request strikes. Its `hits` tell how often it did."""
        self.faults.append(fault)
        return fault

    def answer(self, status: int, method: str = ".*", path: str = "", count: int = 1, retry_after_seconds: int = 0) -> Fault:
        return self.add(Fault(method, path, count, status=status, retry_after_seconds=retry_after_seconds))

    def lose_answers(self, method: str = "POST|PUT|PATCH|DELETE", path: str = "", count: int = 1) -> Fault:
        """As if the connection, or the client, broke right after the API server did what it was asked."""
        return self.add(Fault(method, path, count, lose_answer=True))

    def delay(self, seconds: float, method: str = ".*", path: str = "", count: int = _NO_LIMIT) -> Fault:
        return self.add(Fault(method, path, count, delay_seconds=seconds))

    def freeze_lists(self, path: str = "") -> Fault:
        """Every list is answered as it is answered the first time from now on, however the world moves; until `heal`."""
        return self.add(Fault("GET", path, verb="list", stale=True))

    def swallow_events(self, events: int, path: str = "", count: int = 1) -> Fault:
        """The next `count` watches lose their first events silently."""
        return self.add(Fault("GET", path, count, verb="watch", swallow_events=events))

    def heal(self) -> None:
        """Make no trouble any more."""
        self.faults.clear()
        self._lists.clear()

    def drop_watches(self, resource: str = ".*", expired: bool = False) -> int:
        """Break the connections of the open watches, or end them as expired (410, as after a compaction); returns how many there were."""
        return asyncio.run_coroutine_threadsafe(self._drop(resource, expired), self._loop).result(_STOP_SECONDS)

    def open_watches(self, resource: str = ".*") -> int:
        return sum(bool(re.fullmatch(resource, watch.call.resource)) for watch in list(self._watches))

    @contextmanager
    def running(self) -> Iterator[FaultProxy]:
        self._thread.start()
        if not self._started.wait(_STOP_SECONDS):
            raise TimeoutError("the fault proxy did not start")
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        plane = self._server.control_plane
        certificate = plane.certificate("fault-proxy")
        inward = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        inward.load_cert_chain(certificate.certificate, certificate.key)
        connector = TCPConnector(ssl=ssl.create_default_context(cafile=str(plane.authority.certificate)), limit=0)
        async with ClientSession(
            connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False, skip_auto_headers=_AUTOMATIC
        ) as session:
            self._session = session
            application = web.Application(client_max_size=16 << 20)
            application.router.add_route("*", "/{path:.*}", self._handle)
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=inward)
            await site.start()
            self.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            self._started.set()
            await self._ended.wait()
            await self._drop(".*", expired=False)
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        call = parse(request.method, request.path, request.query_string)
        index = len(self.calls)
        self.calls.append(call)
        fault = next((f for f in list(self.faults) if f.takes(request.method, request.path_qs, call)), Fault())
        await asyncio.sleep(fault.delay_seconds)
        if fault.status:
            self.calls[index] = replace(call, status=fault.status)
            return _refusal(fault)
        key = (id(fault), request.path_qs)
        if fault.stale and key in self._lists:
            status, body, kind = self._lists[key]
            return web.Response(status=status, body=body, headers={"Content-Type": kind})
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP]
        url = URL(self._server.url + request.raw_path, encoded=True)
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=await request.read() or None, allow_redirects=False
            ) as answer:
                self.calls[index] = replace(call, status=answer.status)
                if call.verb == "watch" and answer.status == 200:
                    return await self._watch(request, answer, call, fault.swallow_events)
                body = await answer.read()
        except ClientConnectionError:
            return _break(request)
        if fault.lose_answer:
            return _break(request)
        if fault.stale:
            self._lists[key] = (answer.status, body, answer.headers.get("Content-Type", "application/json"))
        return web.Response(status=answer.status, body=body, headers={n: v for n, v in answer.headers.items() if n.lower() not in _HOP_BY_HOP})

    async def _watch(self, request: web.Request, answer: ClientResponse, call: Call, swallow: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": answer.headers["Content-Type"]})
        await response.prepare(request)
        watch = _OpenWatch(call, request, response)
        self._watches.append(watch)
        try:
            async for event in _events(answer):
                if swallow:
                    swallow -= 1
                else:
                    await response.write(event)
        except (ConnectionError, ClientConnectionError):
            _break(request)
        finally:
            self._watches.remove(watch)
        return response

    async def _drop(self, resource: str, expired: bool) -> int:
        dropped = [watch for watch in self._watches if re.fullmatch(resource, watch.call.resource)]
        for watch in dropped:
            if expired:
                with suppress(ConnectionError):
                    await watch.response.write(json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n")
                    await watch.response.write_eof()
            _break(watch.request)
        return len(dropped)


async def _events(answer: ClientResponse) -> AsyncIterator[bytes]:
    """The lines of a watch, however long they are."""
    begun = b""
    async for part in answer.content.iter_any():
        *whole, begun = (begun + part).split(b"\n")
        for line in whole:
            yield line + b"\n"


def _break(request: web.Request) -> web.Response:
    """End the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)


def _refusal(fault: Fault) -> web.Response:
    headers = {"Retry-After": str(fault.retry_after_seconds)} if fault.retry_after_seconds else {}
    return web.json_response(_status(fault.status), status=fault.status, headers=headers)


def _status(code: int) -> dict[str, object]:
    reason = _REASONS.get(code, "Unknown")
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"injected: {reason}",
        "reason": reason,
        "code": code,
    }

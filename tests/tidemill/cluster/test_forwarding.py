"""To a port of a pod: bytes arrive as they were sent, and what goes wrong is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import pytest
import yaml
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.cluster.api import Cluster
from tidemill.cluster.forwarding import CHUNK_BYTES, PROTOCOL, forward
from tidemill.cluster.kubeconfig import Place, connect

Behave = Callable[[web.WebSocketResponse], Awaitable[None]]


@contextlib.asynccontextmanager
async def cluster(behave: Behave | int, calls: list[web.Request] | None = None) -> AsyncIterator[Cluster]:
    """An API server that has one pod, or refuses with a status."""

    async def port_forward(request: web.Request) -> web.StreamResponse:
        (calls if calls is not None else []).append(request)
        if isinstance(behave, int):
            return web.Response(status=behave)
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + (7000).to_bytes(2, "little"))
        await behave(socket)
        await socket.close()
        return socket

    app = web.Application()
    app.add_routes([web.get("/api/v1/namespaces/sea/pods/sail-conductor-0/portforward", port_forward)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with TemporaryDirectory() as folder:
        document = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
            "users": [{"name": "u", "user": {"token": "of-ann"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (Path(folder) / "config").write_text(yaml.safe_dump(document))
        try:
            async with connect(Place("sea", kubeconfig=f"{folder}/config")) as connected:
                yield connected
        finally:
            await runner.cleanup()


async def echo(socket: web.WebSocketResponse) -> None:
    async for message in socket:
        assert message.data[0] == 0
        await socket.send_bytes(message.data)


async def through(cluster: Cluster, pieces: list[bytes]) -> bytes:
    async with forward(cluster, "sail-conductor-0", 7000) as way:
        reader, writer = await asyncio.open_unix_connection(way.socket)
        for piece in pieces:
            writer.write(piece)
        answer = await asyncio.wait_for(reader.readexactly(sum(map(len, pieces))), 10)
        writer.close()
        assert way.trouble is None
    assert not way.socket.exists()
    return answer


@settings(max_examples=20, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20))
def test_bytes_arrive_as_they_were_sent(pieces: list[bytes]) -> None:
    async def check() -> None:
        async with cluster(echo) as connected:
            assert await through(connected, pieces) == b"".join(pieces)

    asyncio.run(check())


async def test_more_than_a_message_holds_arrives_too_and_the_user_is_named() -> None:
    calls: list[web.Request] = []
    async with cluster(echo, calls) as connected:
        large = bytes(range(256)) * (CHUNK_BYTES // 50)
        assert await through(connected, [large]) == large
    assert [(c.query["ports"], c.headers["Authorization"]) for c in calls] == [("7000", "Bearer of-ann")]


async def complain(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\1connection refused")


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (complain, "pod sail-conductor-0 port 7000: connection refused"),
        (403, "you lack a right: create pods/portforward in namespace sea; the role edit has it"),
        (404, "pods/sail-conductor-0/portforward is not there"),
        (400, "pods/sail-conductor-0/portforward has no node yet"),
        (500, "the cluster answers with status 500"),
    ],
)
async def test_what_goes_wrong_is_told(behave: Behave | int, words: str) -> None:
    async with (
        cluster(behave) as connected,
        forward(connected, "sail-conductor-0", 7000) as way,
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(way.socket))) as session,
    ):
        with pytest.raises(aiohttp.ClientError):
            await session.get("http://conductor/v1/events")
        assert words in str(way.trouble)

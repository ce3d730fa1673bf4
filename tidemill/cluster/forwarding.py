"""To a port of a pod through the API server, as `kubectl port-forward` goes: the pod's network policies stand aside, the user's rights decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from tidemill.cluster.api import PODS, Cluster
from tidemill.cluster.trouble import ClusterTrouble, Unanswered

PROTOCOL = "v4.channel.k8s.io"
"""Each message begins with the number of its channel; the first on either channel is the port's number."""

DATA, ERROR = 0, 1
PORT_BYTES = 2
CHUNK_BYTES = 32 * 2**10


@dataclass(slots=True)
class Forward:
    """`socket` is a Unix socket that no other user of this machine reaches; `trouble` is why the last connection through it failed."""

    socket: Path
    trouble: ClusterTrouble | None = None


@asynccontextmanager
async def forward(cluster: Cluster, pod: str, port: int) -> AsyncIterator[Forward]:
    with TemporaryDirectory(prefix="tidemill-") as folder:
        made = Forward(Path(folder) / "pod")
        carrying: set[asyncio.Task[None]] = set()

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (task := asyncio.current_task()) is not None:
                carrying.add(task)
                task.add_done_callback(carrying.discard)
            try:
                path, query = PODS.path(cluster.namespace, pod, "portforward"), {"ports": str(port)}
                async with cluster.websocket(path, PROTOCOL, "create pods/portforward", query) as socket:
                    await _exchange(socket, reader, writer, f"pod {pod} port {port}")
            except ClusterTrouble as trouble:
                made.trouble = trouble
            finally:
                writer.close()

        server = await asyncio.start_unix_server(carry, made.socket)
        try:
            yield made
        finally:
            server.close()
            for task in tuple(carrying):
                task.cancel()
            await asyncio.gather(*carrying, return_exceptions=True)


async def _exchange(socket: aiohttp.ClientWebSocketResponse[bool], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str) -> None:
    """Until one side has no more to say."""
    sides = (asyncio.create_task(_up(reader, socket)), asyncio.create_task(_down(socket, writer, where)))
    try:
        done, _ = await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        for side in done:
            side.result()
    finally:
        for side in sides:
            side.cancel()
        await asyncio.gather(*sides, return_exceptions=True)


async def _up(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            await socket.send_bytes(bytes([DATA]) + data)


async def _down(socket: aiohttp.ClientWebSocketResponse[bool], writer: asyncio.StreamWriter, where: str) -> None:
    greeted = set()
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel not in greeted:
            greeted.add(channel)
            data = data[PORT_BYTES:]
        if channel == ERROR and data:
            raise Unanswered(f"{where}: {data.decode(errors='replace').strip()}")
        if channel == DATA and data:
            with suppress(ConnectionError):
                writer.write(data)
                await writer.drain()

"""Reaching into a namespace: listens on loopback outside and connects inside.

`python -m tests.cluster.forwarding PORT NETWORK ADDRESS TARGET_PORT`
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

_CHUNK_BYTES = 1 << 16


async def forward(port: int, network: int, address: str, target_port: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(address, target_port)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    os.setns(network, os.CLONE_NEWNET)  # the listening socket stays where it was made
    print("ready", flush=True)
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.write_eof()


if __name__ == "__main__":
    asyncio.run(forward(int(sys.argv[1]), os.open(sys.argv[2], os.O_RDONLY), sys.argv[3], int(sys.argv[4])))

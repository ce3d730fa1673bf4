"""A proxy between harness and gateway that breaks answers in every way that a network does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tidemill_rollout.sandbox.relay import CALL_HEADER

How = Literal["reset", "cut", "end", "stall"]

PARTS = 22
"""Places to break an answer at. No stream of these tests has more events."""

_CALL_ID = re.compile(rb"\r\n%s: (\w+)\r\n" % CALL_HEADER.encode())
_CALLS = (b"/messages", b"/chat/completions", b"/responses")


@dataclass(frozen=True)
class Break:
    """What becomes of one answer, which the gateway has written whole."""

    how: How
    after: int = -1  # so many events of it pass, or, where it is no stream, what is before that one of `places`; -1: not even its headers
    seconds: float = 0.0  # of a stall, after which the connection is reset; it ends when the other side hangs up


@dataclass
class Proxy:
    """`breaks` says what happens to the answer of call number n, counted from 0, retries too; None: nothing."""

    gateway: Path  # its Unix socket
    breaks: Callable[[int], Break | None]
    calls: int = 0
    broken: int = 0
    of_harness: set[bytes] = field(default_factory=set)  # a sandbox's relay gives each of its harness's calls an id, and asks again with that

    @contextlib.asynccontextmanager
    async def on_socket(self, path: Path) -> AsyncIterator[Path]:
        server = await asyncio.start_unix_server(self._serve, path, limit=2**20)
        async with server:
            yield path
            server.close()

    @contextlib.asynccontextmanager
    async def on_port(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._exchange(reader, writer):
                pass
        writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection stays."""
        request = await reader.readuntil(b"\r\n\r\n")
        request += b"".join([piece async for piece in _body(reader, request)])
        there, back = await asyncio.open_unix_connection(self.gateway, limit=2**20)
        try:
            back.write(request)
            target = request.split(b" ", 2)[1].partition(b"?")[0]
            if not (request.startswith(b"POST") and target.endswith(_CALLS)):
                return await _pass_on(there, writer, request.startswith(b"HEAD"))
            wanted = self.breaks(self.calls)
            self.calls += 1
            self.of_harness.update(_CALL_ID.findall(request))
            if wanted is None:
                return await _pass_on(there, writer, False)
            self.broken += 1
            await _break(wanted, there, reader, writer)
            return False
        finally:
            back.transport.abort()


async def _pass_on(there: asyncio.StreamReader, writer: asyncio.StreamWriter, head_only: bool) -> bool:
    head = await there.readuntil(b"\r\n\r\n")
    writer.write(head)
    if not head_only:
        async for piece in _body(there, head):
            writer.write(piece)
            await writer.drain()
    await writer.drain()
    return b"connection: close" not in head.lower()


async def _break(wanted: Break, there: asyncio.StreamReader, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All of the answer is read, and as much of it shown as is wanted, as it comes."""
    head = await there.readuntil(b"\r\n\r\n")
    body, shown = b"", 0
    if wanted.after >= 0:
        writer.write(_without_length(head))
    async for piece in _body(there, head):
        body += b"".join(_dechunked(piece)) if b"chunked" in head.lower() else piece
        if wanted.after >= 0 and b"event-stream" in head:
            events = [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
            last = -1 if wanted.how == "end" else len(events)  # one that is closed properly lacks something, or it is not broken
            shown = _show(b"".join(events[:last][: wanted.after]), shown, writer)
    if wanted.after >= 0 and b"event-stream" not in head:
        for place in places(len(body))[: wanted.after + 1]:
            shown = _show(body[: min(place, len(body) - (wanted.how == "end"))], shown, writer)
    if wanted.how == "end":
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    if wanted.how == "stall":
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), wanted.seconds)
    if wanted.how in ("reset", "stall"):
        connection: socket.socket = writer.get_extra_info("socket")
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


def places(size: int) -> list[int]:
    """Where a body of so many bytes that is no stream breaks: all over it, before its last byte, and behind that, where its end is still missing."""
    return [*(size * part // (PARTS - 2) for part in range(PARTS - 2)), size - 1, size]


def _show(wanted: bytes, shown: int, writer: asyncio.StreamWriter) -> int:
    """Send what is new, as one chunk. Returns how much has been."""
    if new := wanted[shown:]:
        writer.write(b"%x\r\n%s\r\n" % (len(new), new))
    return len(wanted)


async def _body(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """As it is framed."""
    headers = {name.lower().strip(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])}
    if headers.get(b"transfer-encoding") == b"chunked":
        size = -1
        while size != 0:
            line = await reader.readuntil(b"\r\n")
            size = int(line, 16)
            yield line + await reader.readexactly(size + 2)
    elif length := int(headers.get(b"content-length", b"0")):
        yield await reader.readexactly(length)


def _dechunked(body: bytes) -> list[bytes]:
    chunks = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        chunks.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return chunks


def _without_length(head: bytes) -> bytes:
    """The same head, of a body in chunks."""
    kept = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith((b"content-length", b"transfer-encoding"))]
    return b"\r\n".join([*kept, b"Transfer-Encoding: chunked"]) + b"\r\n\r\n"

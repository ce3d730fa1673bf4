"""The way from a harness to the gateway: inside the sandbox, so that an answer reaches the harness whole or not at all.

Harnesses die of answers that break off in the middle: Claude Code of one that is cut after a finished block, qwen-code of any; others take what
they have for all there is. So an answer is passed on once its last byte is here. When the connection breaks before, the same request is sent
again, with the same id, and the gateway gives it the answer that is under way. Only an answer that takes long is passed on piece by piece, for
the harness's watchdog, one piece behind what has come; then a break is the harness's to mend. With the next request the gateway is told
which answers have been passed on: that one was sent says little, the way there may have lost it.

Standard library only, Python 3.8 or later: it runs as part of the sandbox's first program.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

CALL_HEADER = "Tidemill-Call"
DELIVERED_HEADER = "Tidemill-Delivered"

HOLD_SECONDS = 30.0
"""An answer that takes longer is passed on as it comes, for the watchdog of a harness of which nothing is known."""

IDLE_SECONDS = 60.0
"""A gateway that says nothing for so long is gone, and nobody has told us: it gives a sign of life every 15 s."""

PATIENCE_SECONDS = 900.0
"""How long a gateway that is away is asked again. Then the harness hears of it."""

KEPT_BYTES = 16 * 2**20
"""A larger request is passed on as it comes, and only once."""

_LAST_EVENTS = (
    *(b"event: message_stop", b"event: error"),
    *(b"data: [DONE]", b'data: {"error"'),
    *(b"event: response.completed", b"event: response.incomplete", b"event: response.failed"),
)
"""One of them ends a stream that is whole, on every wire. A proxy on the way may close one properly that it has lost."""

HEAD_BYTES = 256 * 2**10
LONGEST_PAUSE_SECONDS = 1.0
_HOP = {"connection", "keep-alive", "expect", "proxy-connection", "te", "upgrade", "transfer-encoding", "content-length"}
_OURS = {CALL_HEADER.lower(), DELIVERED_HEADER.lower()}


class Request(NamedTuple):
    start: bytes  # the request line
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    rest: int  # bytes of the body that are still to be read, instead of `body`
    stays: bool  # whether the harness keeps its connection
    plain: bool  # HTTP/1.0

    @property
    def head_only(self) -> bool:
        return self.start.startswith(b"HEAD ")


class Head(NamedTuple):
    raw: bytes
    status: int
    length: int  # of the body; -1: in chunks, -2: to the end of the connection
    kind: bytes  # of its content


class Malformed(Exception):
    """Not HTTP as the gateway would read it."""


class Broken(Exception):
    """The gateway's side ended before its answer did."""


class HungUp(Exception):
    """The harness's side ended."""


class Relay:
    """`connect` opens one connection to the gateway. Raises OSError."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        hold_seconds: float = HOLD_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._connect = connect
        self._hold_seconds = hold_seconds
        self._idle_seconds = idle_seconds
        self._patience_seconds = patience_seconds
        self._delivered: set[str] = set()  # passed on, and the gateway does not know it yet

    def serve(self, near: socket.socket) -> None:
        """One connection of the harness, to its end."""
        with near, near.makefile("rb") as stream, contextlib.suppress(OSError, HungUp):
            while True:
                try:
                    request = read_request(stream)
                except Malformed as problem:
                    near.sendall(_refusal(str(problem)))
                    return
                if request is None or not self._exchange(near, stream, request):
                    return

    def _exchange(self, near: socket.socket, stream: BinaryIO, request: Request) -> bool:
        """Whether the connection stays for another request. Raises `HungUp`, OSError of the harness's side."""
        call = os.urandom(12).hex()
        passing = _Passing(near, time.monotonic() + self._hold_seconds)
        deadline, pause = time.monotonic() + self._patience_seconds, 0.05
        while True:
            try:
                stays = self._attempt(near, stream, request, call, passing)
            except Broken:
                if passing.begun or request.rest or time.monotonic() > deadline:
                    _reset(near)
                    return False
                passing.held.clear()
                time.sleep(pause)
                pause = min(LONGEST_PAUSE_SECONDS, pause * 2)
            else:
                return stays

    def _attempt(self, near: socket.socket, stream: BinaryIO, request: Request, call: str, passing: _Passing) -> bool:
        told = tuple(self._delivered)
        try:
            far = self._connect()
        except OSError as cause:
            raise Broken from cause
        with far:
            with contextlib.suppress(OSError):  # it may have answered before it had heard all
                far.sendall(_forwarded(request, call, told))
            if request.rest:
                _stream(stream, far, request.rest)
            answer = _Answer(far, near, self._idle_seconds)
            head = answer.head()
            self._delivered.difference_update(told)
            passing.add(head.raw)
            bodiless = request.head_only or head.status in (204, 304)
            body = bytearray()
            for piece, data in () if bodiless else answer.pieces(head):
                if head.length == -1 and not data and not _is_whole(body, head.kind):
                    raise Broken  # what came last stays here: half an answer ends Claude Code, and opencode goes on with it
                passing.add(piece)
                body += data
            self._delivered.add(call)  # before the harness has it, because its next request may be quicker than we are
            try:
                passing.finish()
            except OSError:
                self._delivered.discard(call)
                raise
            return request.stays and (bodiless or head.length != -2)


class _Passing:
    """What goes to the harness: held back until it is complete, or until it has taken too long."""

    def __init__(self, near: socket.socket, until: float) -> None:
        self.begun = False
        self.held = bytearray()
        self._near = near
        self._until = until

    def add(self, piece: bytes) -> None:
        if time.monotonic() > self._until and self.held:
            self.begun = True
            self._near.sendall(self.held)
            self.held.clear()
        self.held += piece

    def finish(self) -> None:
        self._near.sendall(self.held)


class _Answer:
    """An answer as it comes from the gateway, while the harness still waits for it."""

    def __init__(self, far: socket.socket, near: socket.socket, idle_seconds: float) -> None:
        self._far = far
        self._near = near
        self._idle_seconds = idle_seconds
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(far, select.POLLIN)
        self._poll.register(near, select.POLLIN)

    def head(self) -> Head:
        while True:
            raw = self._until(b"\r\n\r\n", HEAD_BYTES)
            head = _head(raw)
            if head.status >= 200:
                return head

    def pieces(self, head: Head) -> Iterator[tuple[bytes, bytes]]:
        """With their framing, and without. Raises `Broken`, `HungUp`."""
        if head.length >= 0:
            whole = self._exactly(head.length)
            yield whole, whole
        elif head.length == -2:
            with contextlib.suppress(Broken):
                while True:
                    some = self._take(len(self._buffer) or self._more())
                    yield some, some
        else:
            size = -1
            while size != 0:
                line = self._until(b"\r\n", 1024)
                try:
                    size = int(line.split(b";")[0], 16)
                except ValueError as cause:
                    raise Broken from cause
                framed = self._exactly(size + 2)
                yield line + framed, framed[:-2]

    def _until(self, end: bytes, most: int) -> bytes:
        while (found := self._buffer.find(end)) < 0:
            if len(self._buffer) > most:
                raise Broken
            self._more()
        return self._take(found + len(end))

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _more(self) -> int:
        """Wait for more bytes; how many there are now."""
        while True:
            ready = dict(self._poll.poll(self._idle_seconds * 1000))
            if not ready:
                raise Broken
            if self._near.fileno() in ready:
                if not self._near.recv(1, socket.MSG_PEEK):
                    raise HungUp
                self._poll.unregister(self._near)  # its next request is already there
            if self._far.fileno() in ready:
                break
        try:
            data = self._far.recv(2**18)
        except OSError as cause:
            raise Broken from cause
        if not data:
            raise Broken
        self._buffer += data
        return len(self._buffer)


def start(port: int, connect: Callable[[], socket.socket], hold_seconds: float) -> int:
    """Serve 127.0.0.1:`port`, in threads; 0 is any free port. Returns which.

    A flood of connections may use up the sandbox's threads or files. Then some are closed at once; those that come later are served again.
    """
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    relay = Relay(connect, hold_seconds)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # no file is left
                time.sleep(0.1)
                continue
            try:
                threading.Thread(target=relay.serve, args=(connection,), daemon=True).start()
            except RuntimeError:  # no thread is left
                connection.close()

    threading.Thread(target=accept, daemon=True).start()
    bound: int = listener.getsockname()[1]
    return bound


def read_request(stream: BinaryIO) -> Request | None:
    """The next one; None when there is none. Raises `Malformed`."""
    line = stream.readline(HEAD_BYTES)
    while line in (b"\r\n", b"\n"):
        line = stream.readline(HEAD_BYTES)
    if not line.endswith(b"\n"):
        return None
    headers: list[tuple[bytes, bytes]] = []
    size = len(line)
    while (entry := stream.readline(HEAD_BYTES)) not in (b"\r\n", b"\n"):
        name, colon, value = entry.partition(b":")
        size += len(entry)
        if not entry.endswith(b"\n"):
            return None
        if not colon or size > HEAD_BYTES:
            raise Malformed("its headers are too large, or are none")
        headers.append((name, value.strip()))
    words = line.split()
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Malformed("it does not begin as HTTP/1.1 does")
    named = {name.decode("latin-1").lower(): value for name, value in headers}
    kept = tuple((name, value) for name, value in headers if name.decode("latin-1").lower() not in _HOP | _OURS)
    plain = words[2] == b"HTTP/1.0"
    stays = not plain and named.get("connection", b"").lower() != b"close"
    body, rest = _body(stream, named)
    return None if body is None else Request(line.rstrip(), kept, body, rest, stays, plain)


def _body(stream: BinaryIO, named: dict[str, bytes]) -> tuple[bytes | None, int]:
    """What there is of it, and how much is left to read."""
    if "transfer-encoding" in named:
        if named["transfer-encoding"].lower() != b"chunked" or "content-length" in named:
            raise Malformed("its length is given in two ways, or in a way that is not known")
        return _chunked(stream), 0
    length = named.get("content-length", b"0")
    if not length.isdigit():
        raise Malformed("its length is no number")
    if int(length) > KEPT_BYTES:
        return b"", int(length)
    body = stream.read(int(length))
    return (body if len(body) == int(length) else None), 0


def _chunked(stream: BinaryIO) -> bytes | None:
    body = bytearray()
    while True:
        line = stream.readline(1024)
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            return None
        if len(body) + size > 2 * KEPT_BYTES:
            raise Malformed("it is too large to be sent in chunks")
        body += stream.read(size)
        if not stream.readline(1024).endswith(b"\n"):
            return None
        if size == 0:
            return bytes(body)


def _forwarded(request: Request, call: str, delivered: tuple[str, ...]) -> bytes:
    lines = [request.start, *(name + b": " + value for name, value in request.headers), b"Connection: close"]
    lines.append(f"{CALL_HEADER}: {call}".encode())
    if delivered:
        lines.append(f"{DELIVERED_HEADER}: {','.join(delivered)}".encode())
    if length := request.rest or len(request.body):
        lines.append(b"Content-Length: %d" % length)
    return b"\r\n".join(lines) + b"\r\n\r\n" + request.body


def _stream(stream: BinaryIO, far: socket.socket, size: int) -> None:
    """All of it is read, also when the gateway has heard enough: a harness that still writes does not listen. Raises `HungUp`."""
    listens = True
    while size > 0:
        data = stream.read(min(size, 2**16))
        if not data:
            raise HungUp
        size -= len(data)
        if listens:
            try:
                far.sendall(data)
            except OSError:
                listens = False


def _head(raw: bytes) -> Head:
    """With the harness's connection kept, whatever becomes of ours. Raises `Broken`."""
    first, *lines = raw[:-4].split(b"\r\n")
    try:
        status = int(first.split()[1])
    except (IndexError, ValueError) as cause:
        raise Broken from cause
    length, kind, kept = -2, b"", [first]
    for line in lines:
        name, _, value = line.partition(b":")
        key = name.strip().lower()
        if key == b"transfer-encoding":
            length = -1
        elif key == b"content-length" and length == -2 and value.strip().isdigit():
            length = int(value)
        elif key == b"content-type":
            kind = value.strip().lower()
        if key not in (b"connection", b"keep-alive"):
            kept.append(line)
    return Head(b"\r\n".join(kept) + b"\r\n\r\n", status, length, kind)


def _is_whole(body: bytes | bytearray, kind: bytes) -> bool:
    """Whether what came in chunks is all there is."""
    if kind.startswith(b"text/event-stream"):
        return body.rpartition(b"\n\n")[0].rpartition(b"\n\n")[2].startswith(_LAST_EVENTS)
    if kind.startswith(b"application/json"):
        try:
            json.loads(body)
        except ValueError:
            return False
    return True


def _refusal(problem: str) -> bytes:
    body = b'{"type": "error", "error": {"type": "invalid_request_error", "message": "sandbox: not a request: %s"}}' % problem.encode()
    return b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _reset(near: socket.socket) -> None:
    """An end that nobody takes for the end of the answer."""
    with contextlib.suppress(OSError):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

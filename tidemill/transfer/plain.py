"""The transport where NIXL does not load: a thread that sends exported memory over TCP. Host memory only."""

from __future__ import annotations

import ctypes
import secrets
import socket
import struct
import threading
import time

from tidemill.transfer.transport import Region, TransferFailed
from tidemill.wire.trainer import MemoryDescriptor

_REQUEST = struct.Struct("!16sQQ")  # key, address, bytes
_GRANTED = b"\x01"
_SENDER_TIMEOUT_SECONDS = 60.0


class PlainTransport:
    """`MemoryDescriptor.peer` is `host:port/key`: only who was given a descriptor can read, and only what it describes."""

    def __init__(self, host: str = "127.0.0.1", advertise: str = "") -> None:
        """Listens on `host`; others reach it at `advertise`, which is the same where nothing else is said."""
        self._host = host
        self._advertise = advertise or host
        self._key = secrets.token_bytes(16)
        self._exported: set[tuple[int, int]] = set()
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()

    def export(self, region: Region) -> MemoryDescriptor:
        if region.memory != "DRAM":
            raise ValueError(f"the plain transport reads host memory only, not {region.memory}; copy to the host first, or install nixl")
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server((self._host, 0), backlog=64)
                threading.Thread(target=self._accept, args=(self._listener,), name="plain-transport", daemon=True).start()
            self._exported.add((region.address, region.nbytes))
            port = self._listener.getsockname()[1]
        return MemoryDescriptor("plain", f"{self._advertise}:{port}/{self._key.hex()}", region.address, region.nbytes)

    def withdraw(self, descriptor: MemoryDescriptor) -> None:
        with self._lock:
            self._exported.discard((descriptor.address, descriptor.nbytes))

    def pull(self, source: MemoryDescriptor, into: Region, deadline_seconds: float) -> None:
        if source.transport != "plain":
            raise TransferFailed(f"a plain transport cannot read from a {source.transport} one: give both processes the same")
        if source.nbytes != into.nbytes or into.memory != "DRAM":
            raise TransferFailed(f"the source has {source.nbytes} bytes, the target {into.nbytes} in {into.memory}")
        deadline = time.monotonic() + deadline_seconds
        endpoint, _, key = source.peer.partition("/")
        host, _, port = endpoint.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=deadline_seconds) as connection:
                connection.sendall(_REQUEST.pack(bytes.fromhex(key), source.address, source.nbytes))
                if connection.recv(1) != _GRANTED:
                    raise TransferFailed(f"{endpoint} does not export this memory any more: ask for a new descriptor")
                target = _view(into.address, into.nbytes)
                received = 0
                while received < into.nbytes:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TransferFailed(f"{received} of {source.nbytes} bytes were read within {deadline_seconds:g} s")
                    connection.settimeout(left)
                    count = connection.recv_into(target[received:])
                    if count == 0:
                        raise TransferFailed(f"{endpoint} hung up after {received} of {source.nbytes} bytes")
                    received += count
        except (OSError, ValueError) as cause:
            raise TransferFailed(f"{endpoint}: {type(cause).__name__}: {cause}") from cause

    def close(self) -> None:
        with self._lock:
            self._exported.clear()
            if self._listener is not None:
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, which a mere close does not
                self._listener.close()
                self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._send, args=(connection,), name="plain-sender", daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        connection.settimeout(_SENDER_TIMEOUT_SECONDS)
        with connection:
            try:
                request = _read(connection, _REQUEST.size)
                if request is None:
                    return
                key, address, nbytes = _REQUEST.unpack(request)
                with self._lock:
                    granted = secrets.compare_digest(key, self._key) and (address, nbytes) in self._exported
                if granted:
                    connection.sendall(_GRANTED)
                    connection.sendall(_view(address, nbytes))
            except OSError:  # the reader is gone, or reads nothing for a minute; it sees that itself
                return


def _view(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            return None
        data += piece
    return data

"""The transport of clusters: one-sided reads by NIXL over UCX (RDMA; shared memory or TCP where there is none). Raw addresses, no torch."""

from __future__ import annotations

import base64
import importlib
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from tidemill.transfer.transport import Region, TransferFailed
from tidemill.wire.trainer import MemoryDescriptor

EXPORTER_POLL_MICROSECONDS = 2000
"""How often an exporter looks for peers that connect. NIXL's own class fixes it at 0, which keeps one core busy for ever."""

CHUNK_BYTES = 64 * 2**20
"""A pull is split into reads of this size."""


class NixlTransport:
    """The exporting agent is made by the first export. Every pull has an agent of its own (35 ms): a peer that dies takes only that one with it."""

    def __init__(self) -> None:
        # Chosen by UCX itself where there is a fabric or a GPU. Elsewhere the rest of its list only costs start-up time.
        if not Path("/sys/class/infiniband").exists() and not Path("/dev/nvidiactl").exists():
            os.environ.setdefault("UCX_TLS", "tcp,cma,sysv,posix,self")
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
        self._nixl: Any = importlib.import_module("nixl._bindings")  # NIXL's own Python class cannot set the delay below
        self._exporter: Any = None
        self._exported: dict[MemoryDescriptor, Any] = {}
        self._lock = threading.Lock()

    def export(self, region: Region) -> MemoryDescriptor:
        with self._lock:
            if self._exporter is None:
                self._exporter = self._agent(EXPORTER_POLL_MICROSECONDS)
            registered = self._nixl.nixlRegDList(self._kind(region.memory), [(region.address, region.nbytes, region.device, "")])
            self._exporter.registerMem(registered, [])
            peer = base64.b64encode(self._exporter.getLocalMD()).decode()
            descriptor = MemoryDescriptor("nixl", peer, region.address, region.nbytes, region.memory, region.device)
            self._exported[descriptor] = registered
            return descriptor

    def withdraw(self, descriptor: MemoryDescriptor) -> None:
        with self._lock:
            registered = self._exported.pop(descriptor, None)
            if registered is not None:
                self._exporter.deregisterMem(registered, [])

    def pull(self, source: MemoryDescriptor, into: Region, deadline_seconds: float) -> None:
        if source.transport != "nixl":
            raise TransferFailed(f"a NIXL transport cannot read from a {source.transport} one: give both processes the same")
        if source.nbytes != into.nbytes:
            raise TransferFailed(f"the source has {source.nbytes} bytes, the target {into.nbytes}")
        deadline = time.monotonic() + deadline_seconds
        agent = self._agent(poll_microseconds=None)
        local = self._nixl.nixlRegDList(self._kind(into.memory), [(into.address, into.nbytes, into.device, "")])
        try:
            agent.registerMem(local, [])
            peer = agent.loadRemoteMD(base64.b64decode(source.peer))
            handle = agent.createXferReq(
                self._nixl.NIXL_READ,
                self._chunks(into.memory, into.address, into.nbytes, into.device),
                self._chunks(source.memory, source.address, source.nbytes, source.device),
                peer,
                b"",
                [],
            )
            try:
                state = agent.postXferReq(handle, b"")
                while state == self._nixl.NIXL_IN_PROG:
                    if time.monotonic() > deadline:
                        raise TransferFailed(f"{source.nbytes} bytes were not read within {deadline_seconds:g} s")
                    time.sleep(0.0002)
                    state = agent.getXferStatus(handle)
            finally:
                agent.releaseXferReq(handle)
            if state != self._nixl.NIXL_SUCCESS:
                raise TransferFailed(f"NIXL ended the read with {state}")
        except Exception as cause:
            if isinstance(cause, TransferFailed):
                raise
            raise TransferFailed(f"NIXL: {type(cause).__name__}: {cause}") from cause

    def close(self) -> None:
        with self._lock:
            for registered in self._exported.values():
                self._exporter.deregisterMem(registered, [])
            self._exported.clear()
            self._exporter = None

    def _agent(self, poll_microseconds: int | None) -> Any:
        """`None`: no progress thread, the caller's own polling drives it."""
        config = self._nixl.nixlAgentConfig()
        config.useProgThread = poll_microseconds is not None
        config.pthrDelay = poll_microseconds or 0
        config.useListenThread = False
        config.captureTelemetry = False
        config.syncMode = self._nixl.NIXL_THREAD_SYNC_STRICT
        agent = self._nixl.nixlAgent(uuid.uuid4().hex, config)
        agent.createBackend("UCX", {})
        return agent

    def _chunks(self, memory: str, address: int, nbytes: int, device: int) -> Any:
        pieces = [(address + at, min(CHUNK_BYTES, nbytes - at), device) for at in range(0, nbytes, CHUNK_BYTES)]
        return self._nixl.nixlXferDList(self._kind(memory), pieces)

    def _kind(self, memory: str) -> Any:
        return {"DRAM": self._nixl.DRAM_SEG, "VRAM": self._nixl.VRAM_SEG}[memory]

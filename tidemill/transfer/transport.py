"""One interface, two ways to move memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill.wire.trainer import MemoryDescriptor


@dataclass(frozen=True, slots=True)
class Region:
    """One contiguous piece of this process's memory. Whoever exports or pulls into it keeps it alive."""

    address: int
    nbytes: int
    memory: str = "DRAM"  # "DRAM" | "VRAM"
    device: int = 0


class TransferFailed(Exception):
    """Nothing can be said about the bytes in the target: pull again, perhaps from another holder."""


class Transport(Protocol):
    """Memory stays exported until `withdraw` or `close`. Pulls are one-sided: the exporting process does nothing."""

    def export(self, region: Region) -> MemoryDescriptor:
        """Make `region` readable by whoever has the descriptor."""
        ...

    def withdraw(self, descriptor: MemoryDescriptor) -> None: ...

    def pull(self, source: MemoryDescriptor, into: Region, deadline_seconds: float) -> None:
        """Copy the source into `into` (equally long). Blocks; call it from a thread.

        Raises:
            TransferFailed: the peer is gone, the read failed, or took longer than `deadline_seconds`.
        """
        ...

    def close(self) -> None: ...

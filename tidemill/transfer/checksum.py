"""Checksums of weights and gradients: xxh3_128 of the bytes of each tensor, and one digest over a whole model."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from tidemill.transfer.transport import Region
from tidemill.wire.trainer import Shard


class Summed(NamedTuple):
    """One canonical tensor (Hugging Face name, published dtype) with the checksum of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str


def of_bytes(data: bytes | bytearray | memoryview) -> str:
    """Hexadecimal xxh3_128 (19 GB/s on one core)."""
    return xxhash.xxh3_128_hexdigest(data)


def of_memory(address: int, nbytes: int) -> str:
    """The same over this process's memory; the caller keeps it alive. Host memory only."""
    return of_bytes(memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B"))


def digest(tensors: Iterable[Summed]) -> str:
    """One checksum over names, dtypes, shapes and checksums, in name order. Whoever holds equal weights computes an equal digest."""
    lines = (f"{t.name} {t.dtype} {'x'.join(map(str, t.shape))} {t.checksum}\n" for t in sorted(tensors))
    return of_bytes("".join(lines).encode())


def digest_of_shards(shards: Iterable[Shard]) -> str:
    return digest(Summed(s.name, s.dtype, s.shape, s.checksum) for s in shards)


def mismatches(shards: Iterable[Shard], memory: Region) -> tuple[str, ...]:
    """Names of the shards whose bytes in `memory` are not those that were announced."""
    return tuple(s.name for s in shards if of_memory(memory.address + s.offset, s.nbytes) != s.checksum)

"""Which gateway an execution belongs to. A pure function of the execution and the list of gateways: conductor and gateways come to the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def shard_of(execution: str, gateways: int) -> int:
    """The number of the execution's gateway, by rendezvous hashing: one more gateway takes over only what becomes its own."""
    return max(range(gateways), key=lambda number: hashlib.blake2b(f"{number} {execution}".encode(), digest_size=8).digest())


def addresses(text: str) -> tuple[str, ...]:
    """URLs of all gateways, as processes are told them: in the order of their numbers, with commas between."""
    return tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())


def address_of(execution: str, gateways: Sequence[str]) -> str:
    return gateways[shard_of(execution, len(gateways))]

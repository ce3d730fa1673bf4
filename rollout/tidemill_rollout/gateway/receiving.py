"""The body of a harness's request: bounded in size, in time, and in what all of them together take while they come in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from tidemill_rollout.gateway.conversation import Fault
from tidemill_rollout.gateway.execution import Execution

MAX_BODY_BYTES = 32 * 2**20

RECEIVE_SECONDS = 120.0
"""From a sandbox's relay a body comes in milliseconds, and over a slow network in seconds. One that trickles is not waited for."""

MOST_RECEIVED_BYTES = 512 * 2**20
"""Of bodies that are not complete, all executions together."""

REQUESTS_PER_EXECUTION = 128
"""Received or answered at once, retries that attach to a call under way included."""


@dataclass(slots=True)
class Receiver:
    receiving: int = 0  # bytes

    async def body(self, request: web.Request) -> bytes:
        """Raises `Fault`: too large, too slow, broken, or too much at once."""
        if request.content_length is not None and request.content_length > MAX_BODY_BYTES:  # nothing of it is read
            raise _too_large()
        parts: list[bytes] = []
        length = 0
        try:
            async with asyncio.timeout(RECEIVE_SECONDS):
                while part := await request.content.readany():
                    length += len(part)
                    self.receiving += len(part)
                    if length > MAX_BODY_BYTES:
                        raise _too_large()
                    if self.receiving > MOST_RECEIVED_BYTES:
                        raise Fault(503, "too many bytes are being received at once", retry_after=2)
                    parts.append(part)
        except TimeoutError as cause:
            raise Fault(408, f"the request was not complete within {RECEIVE_SECONDS:g} s") from cause
        except (web.RequestPayloadError, aiohttp.ClientPayloadError) as cause:
            raise Fault(400, f"the request's body can not be read: {cause}") from cause
        finally:
            self.receiving -= length
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def one_of(execution: Execution) -> Iterator[None]:
    """One more request of this execution. Raises `Fault` when it has too many."""
    if execution.requests >= REQUESTS_PER_EXECUTION:
        raise Fault(503, f"this execution has {execution.requests} requests under way, no more are taken", retry_after=2)
    execution.requests += 1
    try:
        yield
    finally:
        execution.requests -= 1


def _too_large() -> Fault:
    return Fault(413, f"the request is larger than {MAX_BODY_BYTES >> 20} MiB")

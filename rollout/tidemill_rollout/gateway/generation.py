"""One answer, sampled on as many engines as it takes: what one does not finish, the next goes on with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import aiohttp
import msgspec

from tidemill.telemetry.logs import Log
from tidemill.trajectory.columns import INT, Ints, joined
from tidemill.trajectory.records import Piece
from tidemill.wire.engine import EngineClient, Generate, Sampling
from tidemill.wire.http import Refused, Rejected, Unreachable
from tidemill.wire.trust import Credential
from tidemill_rollout.gateway.conversation import Fault
from tidemill_rollout.gateway.routing import Lease, Routes

log = Log(__name__)


@dataclass(slots=True)
class _Growing:
    """Tokens that one engine is sampling."""

    cell: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def piece(self) -> Piece:
        return Piece(self.cell, tuple(self.token_ids), tuple(self.logprobs), tuple(self.versions))


@dataclass(slots=True)
class Generation:
    """What has been sampled for one call."""

    prompt: Ints
    pieces: list[_Growing] = field(default_factory=list)
    recomputed: int = 0
    finish_reason: str = ""
    first_token: float = 0.0  # unix seconds; 0: none yet

    @property
    def sampled(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.token_ids]

    @property
    def logprobs(self) -> list[float]:
        return [logprob for piece in self.pieces for logprob in piece.logprobs]

    @property
    def cell(self) -> str:
        """The cell that sampled last."""
        return self.pieces[-1].cell if self.pieces else ""

    def last(self, count: int) -> list[int]:
        """The last `count` sampled tokens, without going through all of them."""
        found: list[int] = []
        for piece in reversed(self.pieces):
            if len(found) >= count:
                break
            found = piece.token_ids[-(count - len(found)) :] + found
        return found


class Generator:
    def __init__(
        self,
        routes: Routes,
        session: aiohttp.ClientSession,
        caller: Credential | str,
        end_ids: frozenset[int],
        text: Callable[[list[int]], str],
        idle_seconds: float,
    ) -> None:
        self._routes = routes
        self._session = session
        self._caller = caller
        self._end_ids = end_ids
        self._text = text
        self._idle_seconds = idle_seconds

    async def sample(self, execution: str, call: str, prompt: Ints, sampling: Sampling, preferred: tuple[str, ...]) -> Generation:
        """Sample until the answer is complete. Drains, cut streams, dead and refusing cells are gone around; the caller sets the deadline.

        Raises:
            Fault: an engine says that the request itself is wrong.
        """
        generation = Generation(prompt)
        sampling = msgspec.structs.replace(sampling, stop_token_ids=tuple(sorted(self._end_ids | set(sampling.stop_token_ids))))
        attempt = 0
        while not self._ended(generation, sampling):
            lease = await self._routes.take(preferred, execution, moved=attempt > 0)
            if attempt:
                log.info("a call goes on", execution=execution, call=f"{call}-{attempt}", cell=lease.route.cell, epoch=lease.route.epoch)
            try:
                generation.finish_reason = await self._stay(f"{call}-{attempt}", generation, sampling, lease)
            finally:
                self._routes.leave(lease)
            preferred = lease.destinations if lease.moved else (lease.route.cell,)
            attempt += 1
        return generation

    def _ended(self, generation: Generation, sampling: Sampling) -> bool:
        """Whether nothing is left to sample, also where a stream was cut after the last token but before its end was told."""
        if generation.finish_reason:
            return True
        sampled = generation.sampled
        if sampled and sampled[-1] in self._end_ids.union(sampling.stop_token_ids):
            generation.finish_reason = "stop"
        elif len(sampled) >= sampling.max_tokens:
            generation.finish_reason = "length"
        return bool(generation.finish_reason)

    async def _stay(self, request_id: str, generation: Generation, sampling: Sampling, lease: Lease) -> str:
        """One engine's part. Returns the finish reason, "" when the rest must be sampled elsewhere."""
        lease.reader = asyncio.create_task(self._read(request_id, generation, sampling, lease))
        try:
            await asyncio.wait({lease.reader})
        except asyncio.CancelledError:
            lease.reader.cancel()
            await asyncio.wait({lease.reader})
            raise
        if not lease.reader.cancelled():
            lease.moved = False  # it had come to its end before it could be moved
            return lease.reader.result()
        return ""

    async def _read(self, request_id: str, generation: Generation, sampling: Sampling, lease: Lease) -> str:
        route = lease.route
        before = generation.sampled
        piece = _Growing(route.cell)
        left = msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - len(before), stop=())
        request = Generate(request_id, joined(INT, (generation.prompt, before) if before else (generation.prompt,)), left, route.epoch)
        engine = EngineClient(route.url, self._caller, self._session)
        try:
            async with aclosing(engine.generate(request, self._idle_seconds)) as runs:
                async for run in runs:
                    if run.token_ids:
                        if not piece.token_ids:
                            self._began(generation, piece, before)
                        piece.token_ids += run.token_ids
                        piece.logprobs += run.logprobs
                        piece.versions += run.versions
                        lease.sampled += len(run.token_ids)
                        if sampling.stop and self._stopped(generation, len(run.token_ids), sampling.stop):
                            return "stop"
                    if run.finish_reason in ("stop", "length"):
                        return run.finish_reason
            trouble = "the stream ended without a finish reason"
        except Rejected as cause:
            raise Fault(400, f"the engine of {route.cell} rejects the request: {cause}") from cause
        except (Refused, Unreachable, msgspec.MsgspecError) as cause:
            trouble = str(cause)
        log.warning("an engine did not finish a call", call=request_id, cell=route.cell, epoch=route.epoch, sampled=lease.sampled, reason=trouble)
        self._routes.failed(route.cell)
        return ""

    def _began(self, generation: Generation, piece: _Growing, before: list[int]) -> None:
        """The engine has computed the prompt and is sampling."""
        self._routes.works(piece.cell)
        if before:
            generation.recomputed += len(generation.prompt) + len(before)
        generation.first_token = generation.first_token or time.time()
        generation.pieces.append(piece)

    def _stopped(self, generation: Generation, new: int, stop: tuple[str, ...]) -> bool:
        """Whether a stop string ends in the last `new` tokens. It may have begun on another engine, so engines are not asked to look for it.

        What an engine samples behind it before it hears of that stays in the tree, because it was sampled.
        """
        text = self._text(generation.last(new + 4 * max(map(len, stop)) + 4))  # a character is at most four byte-level tokens
        return any(string in text for string in stop)

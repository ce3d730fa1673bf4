"""Pause, sleep, wake, weights: what the cell agent orders. One order at a time; calls are served only with verified weights of a known version."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from tidemill.telemetry.logs import Log
from tidemill.wire.engine_control import EngineState, Loaded, LoadedDigest, UpdateWeights
from tidemill.wire.http import Refused, Unreachable, WireError
from tidemill_rollout.engine.worker import Outcome

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

NO_VERSION = -1
SLEEP_LEVEL = 2
"""Drop the weights instead of copying them to the host: they are stale on return anyway."""


class Control:
    def __init__(self, engine: AsyncLLM, cell: str, can_free_memory: bool) -> None:
        self._engine = engine
        self._cell = cell
        self._can_free_memory = can_free_memory
        self._incarnation = uuid.uuid4().hex
        self._version = NO_VERSION
        self._digest = ""
        self._paused = False
        self._asleep = False
        self._order = asyncio.Lock()
        self._log = Log(__name__, cell=cell)

    def refuses_calls(self) -> str:
        """Why a call is not served here now; empty when it is."""
        if self._asleep:
            return f"{self._cell}: the engine sleeps"
        if self._version == NO_VERSION:
            return f"{self._cell}: the engine has no verified weights"
        return ""

    def state(self) -> EngineState:
        running = self._engine.get_num_unfinished_requests()
        return EngineState(self._cell, self._incarnation, self._version, self._digest, self._paused, self._asleep, running)

    async def digest(self) -> LoadedDigest:
        [digest] = await self._engine.collective_rpc("digest_of_loaded_weights")
        return LoadedDigest(digest)

    async def pause(self) -> EngineState:
        async with self._order:
            await self._pause()
            return self.state()

    async def resume(self) -> EngineState:
        async with self._order:
            if self._asleep:
                raise Refused(f"{self._cell}: the engine sleeps; wake it first")
            await self._resume()
            return self.state()

    async def sleep(self) -> EngineState:
        async with self._order:
            if not self._asleep:
                # From here on new calls are refused; those in flight end with "abort".
                self._asleep, self._paused, self._version, self._digest = True, True, NO_VERSION, ""
                if self._can_free_memory:
                    await self._engine.sleep(SLEEP_LEVEL, mode="abort")
                else:
                    await self._engine.pause_generation(mode="abort", clear_cache=True)
                self._log.info("engine sleeps")
            return self.state()

    async def wake(self) -> EngineState:
        async with self._order:
            if self._asleep:
                if self._can_free_memory:
                    await self._engine.wake_up()  # also lets the scheduler go on, hence the pause: there are no weights yet
                    await self._engine.pause_generation(mode="keep", clear_cache=False)
                self._asleep, self._paused = False, True
                self._log.info("engine awake, waits for weights")
            return self.state()

    async def update(self, order: UpdateWeights) -> Loaded:
        async with self._order:
            if self._asleep:
                raise Refused(f"{self._cell}: the engine sleeps; wake it first")
            began = time.perf_counter()
            stay_paused = self._paused and self._version != NO_VERSION
            await self._pause()
            seconds = {"pause": time.perf_counter() - began}
            try:
                outcome = await self._pull(order)
                if outcome.problem:
                    raise self._failure(outcome)
                seconds.update(outcome.seconds)
                await self._engine.update_weight_version(str(order.snapshot.version))
                self._version, self._digest = order.snapshot.version, outcome.digest
                if order.recompute_kv:
                    await self._engine.reset_prefix_cache(reset_running_requests=True)
            finally:
                resumed = time.perf_counter()
                if not stay_paused and self._version != NO_VERSION:
                    await self._resume()
            seconds["resume"] = time.perf_counter() - resumed
            self._log.info("weights loaded and verified", version=self._version, digest=self._digest, seconds=seconds)
            return Loaded(self.state(), seconds)

    async def _pull(self, order: UpdateWeights) -> Outcome:
        try:
            [raw] = await self._engine.collective_rpc("pull_weights", args=(msgspec.json.encode(order.snapshot), order.deadline_seconds))
        except Exception as cause:
            # Whatever the worker stumbled over, and wherever: the parameters may be half old, half new.
            self._log.exception("loading weights failed", version=order.snapshot.version)
            return Outcome("", f"weights of version {order.snapshot.version}: {cause}")
        return msgspec.json.decode(raw, type=Outcome)

    def _failure(self, outcome: Outcome) -> WireError:
        """`Refused`: the parameters are as they were. `Unreachable`: nobody knows what they are, and no call is served."""
        if outcome.digest != self._digest:
            self._version, self._digest = NO_VERSION, ""
        consequence = "no call is served until an update succeeds" if self._version == NO_VERSION else f"version {self._version} stays loaded"
        return (Refused if outcome.digest else Unreachable)(f"{self._cell}: {outcome.problem}; {consequence}")

    async def _pause(self) -> None:
        if not self._paused:
            await self._engine.pause_generation(mode="keep", clear_cache=False)
            self._paused = True

    async def _resume(self) -> None:
        if self._paused:
            await self._engine.resume_generation()
            self._paused = False

"""Control of an engine: its cell agent pauses it, puts it to sleep, wakes it, and gives it weights. Loopback only."""

from __future__ import annotations

import msgspec

from tidemill.wire.http import Client
from tidemill.wire.trainer import Nothing, WeightSnapshot


class EngineState(msgspec.Struct, frozen=True):
    """`GET /control/v1/state`, and the answer of every order."""

    cell: str
    incarnation: str  # changes when the engine is restarted
    version: int  # policy version of the loaded, verified weights; -1: none, and then no call is served
    digest: str  # of those weights, computed from the loaded parameters; empty when version is -1
    paused: bool  # calls are taken in and wait
    asleep: bool  # calls are refused (409); on GPUs the memory is free for the trainer
    running: int  # calls that wait or are being sampled


class Loaded(msgspec.Struct, frozen=True):
    """The answer of an update."""

    state: EngineState
    seconds: dict[str, float]  # by phase, in the order they ran: pause, pull, verify, load, digest, resume


class UpdateWeights(msgspec.Struct, frozen=True):
    """`POST /control/v1/weights`: pull this snapshot, verify it, load it, compare the digest of the loaded parameters with the published one.

    Calls in flight stand still meanwhile and go on with the new weights, unless the engine was paused before: then it stays so. Repeating it does
    no harm.
    """

    snapshot: WeightSnapshot
    recompute_kv: bool = False  # rollout.kvOnPublish: Recompute. Keep: the KV computed with the old weights goes on being used
    deadline_seconds: float = 120.0  # for the transfer


class LoadedDigest(msgspec.Struct, frozen=True):
    """`GET /control/v1/digest`: computed anew from the loaded parameters, also of an engine fresh from a folder. Equal for equal weights."""

    digest: str


class EngineControl(Client):
    """All orders are idempotent."""

    async def healthy(self, deadline_seconds: float = 5.0) -> None:
        """Return when the engine serves. Raises `WireError` when it does not."""
        await self.call("GET", "/control/v1/healthy", Nothing, deadline_seconds=deadline_seconds)

    async def state(self) -> EngineState:
        return await self.call("GET", "/control/v1/state", EngineState)

    async def digest(self, deadline_seconds: float = 60.0) -> str:
        return (await self.call("GET", "/control/v1/digest", LoadedDigest, deadline_seconds=deadline_seconds)).digest

    async def pause(self, deadline_seconds: float = 60.0) -> EngineState:
        """Finish the current step, then stand still. Calls in flight wait, new ones are taken in and wait."""
        return await self.call("POST", "/control/v1/pause", EngineState, deadline_seconds=deadline_seconds)

    async def resume(self, deadline_seconds: float = 60.0) -> EngineState:
        """Raises `Refused` while the engine is asleep."""
        return await self.call("POST", "/control/v1/resume", EngineState, deadline_seconds=deadline_seconds)

    async def sleep(self, deadline_seconds: float = 120.0) -> EngineState:
        """End what is left in flight ("abort"), drop all KV, and on GPUs give the memory back. The weights count as lost: `version` is -1."""
        return await self.call("POST", "/control/v1/sleep", EngineState, deadline_seconds=deadline_seconds)

    async def wake(self, deadline_seconds: float = 120.0) -> EngineState:
        """Take the memory back. Paused until `update_weights` has given it verified weights, and then it serves."""
        return await self.call("POST", "/control/v1/wake", EngineState, deadline_seconds=deadline_seconds)

    async def update_weights(self, snapshot: WeightSnapshot, recompute_kv: bool = False, deadline_seconds: float = 120.0) -> Loaded:
        """Load `snapshot`.

        Raises:
            Refused: asleep, or the bytes are not what was announced; the old weights are still in place and served.
            Unreachable: the engine did not end it in time, or cannot say what it holds now: then `version` is -1 until an update succeeds.
        """
        order = UpdateWeights(snapshot, recompute_kv, deadline_seconds)
        return await self.call("POST", "/control/v1/weights", Loaded, order, deadline_seconds=deadline_seconds + 60.0)

"""Messages of the trainer: the agent sets it to work, satellites and engines read weights from the core, the core takes in gradient sums."""

from __future__ import annotations

import msgspec

from tidemill.wire.http import Client


class Shard(msgspec.Struct, frozen=True):
    """One canonical tensor (Hugging Face name, published dtype) inside a snapshot's memory."""

    name: str
    dtype: str  # as torch names it, without the prefix: "float32", "bfloat16"
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the snapshot's memory
    nbytes: int
    checksum: str  # xxh3_128 of the bytes, hexadecimal


class MemoryDescriptor(msgspec.Struct, frozen=True):
    """Where to read: what a `tidemill.transfer` transport needs to pull one contiguous piece of memory of another process."""

    transport: str  # "nixl" | "plain"
    peer: str  # base64 of the NIXL agent's metadata, or host:port
    address: int
    nbytes: int
    memory: str = "DRAM"  # "DRAM" | "VRAM"
    device: int = 0


class WeightSnapshot(msgspec.Struct, frozen=True):
    """Weights as they can be pulled now. `digest` covers names, dtypes, shapes and checksums of all shards, in name order."""

    step: int  # optimizer steps applied
    version: int  # policy version under which they are published; -1: a snapshot between publications
    digest: str
    shards: tuple[Shard, ...]
    source: MemoryDescriptor


class Join(msgspec.Struct, frozen=True):
    """`POST /v1/join`: start leasing micro-steps under this epoch. Idempotent; an older epoch answers 409."""

    epoch: int
    core_url: str = ""  # of the core's trainer; empty for the core itself


class Leave(msgspec.Struct, frozen=True):
    """`POST /v1/leave`: finish or give back leases, hand over the gradient sum, then answer. Idempotent."""

    epoch: int


class TrainerState(msgspec.Struct, frozen=True):
    """`GET /v1/state`."""

    cell: str
    incarnation: str
    training: bool
    epoch: int
    step: int
    doing: str = ""  # for people: "forward-backward 3/8 of step 4"


class GradientSum(msgspec.Struct, frozen=True):
    """`POST core/v1/gradients`: a satellite offers the sum over these micro-steps; the core pulls it, stages it, then commits or refuses (409)."""

    cell: str
    epoch: int
    step: int
    incarnation: str
    lease_ids: tuple[str, ...]
    source: MemoryDescriptor
    checksum: str
    statistics: dict[str, float]  # sums, see tidemill_trainer.loss
    indices: tuple[int, ...] = ()  # of the micro-steps, in the order of `lease_ids`: a deterministic sum adds by them


class Nothing(msgspec.Struct, frozen=True):
    """The answer of calls that have nothing to say but that they are done."""


class TrainerClient(Client):
    async def weights_of_version(self, version: int) -> WeightSnapshot:
        return await self.call("GET", "/v1/weights", WeightSnapshot, query={"version": str(version)})

    async def weights_of_step(self, step: int) -> WeightSnapshot:
        """Weights after `step` optimizer updates: what a lease of step `step` (0-based) computes gradients of."""
        return await self.call("GET", "/v1/weights", WeightSnapshot, query={"step": str(step)})

    async def join(self, order: Join) -> TrainerState:
        return await self.call("POST", "/v1/join", TrainerState, order)

    async def leave(self, order: Leave, deadline_seconds: float = 300.0) -> TrainerState:
        return await self.call("POST", "/v1/leave", TrainerState, order, deadline_seconds=deadline_seconds)

    async def state(self) -> TrainerState:
        return await self.call("GET", "/v1/state", TrainerState)

    async def offer_gradients(self, offer: GradientSum, deadline_seconds: float = 120.0) -> Nothing:
        return await self.call("POST", "/v1/gradients", Nothing, offer, deadline_seconds=deadline_seconds)

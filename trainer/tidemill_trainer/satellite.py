"""A satellite's trainer: weights come from the core before each step, gradient sums go to it. It keeps nothing."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor

import aiohttp
import torch
from torch import Tensor

from tidemill.telemetry.logs import Log
from tidemill.transfer import TransferFailed, Transport, checksum
from tidemill.wire.http import Refused, Unreachable
from tidemill.wire.trainer import GradientSum, MemoryDescriptor, TrainerClient, WeightSnapshot
from tidemill.wire.trust import Credential
from tidemill_trainer.exchange import Part
from tidemill_trainer.ledger import Ledger
from tidemill_trainer.memory import give_back
from tidemill_trainer.model import Model, UnsupportedModel
from tidemill_trainer.snapshot import region
from tidemill_trainer.torch_thread import in_torch
from tidemill_trainer.worker import Identity

log = Log(__name__)

PULL_SECONDS = 60.0
HOLD_SECONDS = 60.0
"""How long it tries to get the weights of a step before it gives the micro-step back."""

RETRY_SECONDS = 0.1


class Satellite:
    always_asks = False

    def __init__(
        self, who: Identity, model: Model, transport: Transport, caller: Credential | str, session: aiohttp.ClientSession, torch_thread: Executor
    ) -> None:
        self.ledger = Ledger()
        self._who = who
        self._model = model
        self._transport = transport
        self._caller = caller
        self._session = session
        self._torch_thread = torch_thread
        self._core: TrainerClient | None = None
        self._sum: Tensor | None = None  # what is exported: the gradients themselves, on a GPU their copy in host memory
        self._source: MemoryDescriptor | None = None

    def serve(self, core_url: str) -> None:
        """Work for this core from now on."""
        if self._core is None or self._core.base_url != core_url.rstrip("/"):
            self._core = TrainerClient(core_url, self._caller, self._session)

    @property
    def held_step(self) -> int:
        return self._model.step

    async def hold(self, step: int) -> None:
        if self.held_step == step:
            return
        deadline = time.monotonic() + HOLD_SECONDS
        while True:
            try:
                await self._read_weights(step)
                return
            except (Unreachable, Refused, TransferFailed):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def hand_over(self, part: Part) -> None:
        await in_torch(self._torch_thread, self._export)
        assert self._sum is not None
        assert self._source is not None
        memory = region(self._sum)
        offer = GradientSum(
            self._who.cell,
            part.epoch,
            part.step,
            self._who.incarnation,
            tuple(part.leases),
            self._source,
            await asyncio.to_thread(checksum.of_memory, memory.address, memory.nbytes),
            dict(part.sums),
            tuple(part.indices),
        )
        await self._client().offer_gradients(offer, PULL_SECONDS)
        self.ledger.gradient_bytes += memory.nbytes

    async def apply(self, step: int, micro_steps: int) -> None:
        raise RuntimeError(f"{self._who.cell} is a satellite and cannot finish step {step}; only the core is told to")

    async def publish(self, version: int) -> None:
        raise RuntimeError(f"{self._who.cell} is a satellite and cannot publish version {version}; only the core is told to")

    async def rest(self) -> None:
        """The weights go too: at the next join they would be stale."""
        await in_torch(self._torch_thread, self._drop)

    def close(self) -> None:
        self._withdraw()

    async def _read_weights(self, step: int) -> None:
        snapshot = await self._client().weights_of_step(step)
        self._check(snapshot)
        started = time.monotonic()
        target = await self._host_memory()
        await asyncio.to_thread(self._transport.pull, snapshot.source, region(target), PULL_SECONDS)
        wrong = await asyncio.to_thread(checksum.mismatches, snapshot.shards, region(target))
        if wrong:
            self.ledger.checksum_failures["Weights"] += 1
            raise TransferFailed(
                f"weights of step {step} do not match their checksums ({len(wrong)} tensors, first {wrong[0]}); the core may be updating them"
            )
        await in_torch(self._torch_thread, lambda: self._use(target, step))
        self.ledger.weight_bytes += snapshot.source.nbytes
        log.info("weights read", step=step, digest=snapshot.digest, seconds=round(time.monotonic() - started, 3))

    def _check(self, snapshot: WeightSnapshot) -> None:
        mine = [(slot.name, slot.shape, slot.offset * 4) for slot in self._model.layout.slots]
        theirs = [(shard.name, shard.shape, shard.offset) for shard in snapshot.shards]
        if mine != theirs or {shard.dtype for shard in snapshot.shards} != {"float32"}:
            raise UnsupportedModel(f"{self._who.cell}: the core's tensors are not those of this model folder; give all cells the same model")

    async def _host_memory(self) -> Tensor:
        """Where weights arrive: in place on a CPU, in a buffer of their own on a GPU."""
        if self._model.device.type != "cpu":
            return torch.empty(self._model.layout.numel, pin_memory=True)
        self._model.hold_weights()
        self._model.step = -1  # from here until the checksums are right they are nobody's weights
        return self._model.hold_weights()

    def _use(self, arrived: Tensor, step: int) -> None:
        weights = self._model.hold_weights()
        if weights is not arrived:
            weights.copy_(arrived)
        self._model.step = step

    def _export(self) -> None:
        gradients = self._model.hold_gradients()
        if self._sum is None:
            self._sum = gradients if gradients.device.type == "cpu" else torch.empty(gradients.numel(), pin_memory=True)
        if self._sum is not gradients:
            self._sum.copy_(gradients)
        if self._source is None:
            self._source = self._transport.export(region(self._sum))

    def _drop(self) -> None:
        self._withdraw()
        self._model.drop_weights()
        give_back()

    def _withdraw(self) -> None:
        if self._source is not None:
            self._transport.withdraw(self._source)
        self._source = self._sum = None

    def _client(self) -> TrainerClient:
        if self._core is None:
            raise Unreachable(f"{self._who.cell} has not been told where the core is; join with its URL")
        return self._core

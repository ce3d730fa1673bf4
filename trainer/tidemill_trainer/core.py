"""The core cell's trainer: the authoritative weights, the only optimizer, checkpoints, publications, and the sum over each step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tidemill.telemetry.logs import Log
from tidemill.transfer import TransferFailed, Transport, checksum
from tidemill.wire.conductor import Applied, ConductorClient, Contribution, Published, TrainingState
from tidemill.wire.http import Refused, Unreachable
from tidemill.wire.trainer import GradientSum, WeightSnapshot
from tidemill_trainer import checkpoint
from tidemill_trainer.exchange import Part, StepSum
from tidemill_trainer.ledger import Ledger
from tidemill_trainer.loss import summary
from tidemill_trainer.memory import give_back
from tidemill_trainer.model import Model
from tidemill_trainer.optimizer import Optimizer
from tidemill_trainer.snapshot import BETWEEN_PUBLICATIONS, Snapshot, digest_of, region
from tidemill_trainer.torch_thread import in_torch
from tidemill_trainer.worker import Identity

log = Log(__name__)

RETRY_SECONDS = 0.2
PULL_SECONDS = 60.0
PULLS = 3
DISK_SECONDS = 2.0
"""Between two attempts at a checkpoint on a full disk."""


@dataclass(frozen=True, slots=True)
class Settings:
    model_folder: Path
    checkpoints: Path
    store: Path  # of the conductor; copied into checkpoints where it is on this machine
    published_dtype: torch.dtype
    learning_rate: float
    max_grad_norm: float
    keep: int
    deterministic: bool


class Core:
    always_asks = True

    def __init__(
        self,
        who: Identity,
        settings: Settings,
        model: Model,
        conductor: ConductorClient,
        transport: Transport,
        torch_thread: Executor,
    ) -> None:
        """`model` holds the initial weights."""
        self.ledger = Ledger()
        self._who = who
        self._settings = settings
        self._model = model
        self._conductor = conductor
        self._transport = transport
        self._torch_thread = torch_thread
        weights = model.hold_weights()
        self._weights = weights
        self._optimizer = Optimizer(weights, settings.learning_rate, settings.max_grad_norm)
        self._of_step = Snapshot(model.layout, torch.float32, transport)
        self._published = Snapshot(model.layout, settings.published_dtype, transport)
        self._published_step = -1
        self._sum = StepSum(0, weights, settings.deterministic)
        self._applied: Applied | None = None  # of the last update
        self._counting = asyncio.Lock()

    @property
    def held_step(self) -> int:
        return self._model.step

    async def start(self) -> None:
        """Stand where the conductor says the job stands: its last committed step, its last publication."""
        state = await self._training_state()
        await in_torch(self._torch_thread, lambda: self._restore(state))
        log.info("core is ready", step=self.held_step, published_version=state.policy_version if self._published.present else None)

    def weights_of_step(self, step: int) -> WeightSnapshot:
        return _held(self._of_step, f"step {step}", lambda present: present.step == step)

    def weights_of_version(self, version: int) -> WeightSnapshot:
        return _held(self._published, f"version {version}", lambda present: present.version == version)

    async def hold(self, step: int) -> None:
        if step != self.held_step:
            raise Refused(f"the core holds the weights of step {self.held_step}, not of step {step}")

    async def rest(self) -> None:
        await in_torch(self._torch_thread, self._drop_gradients)

    async def hand_over(self, part: Part) -> None:
        async with self._counting:
            gradient = self._model.hold_gradients()
            await self._count(self._who.cell, part.epoch, part.step, part.leases)
            await in_torch(self._torch_thread, lambda: self._sum.add(part.leases, part.indices, dict(part.sums), gradient))

    async def take_in(self, offer: GradientSum) -> None:
        """A satellite's sum: read it completely, then have it counted, then add it.

        Raises:
            Refused: it is of another step, or the conductor does not count it. Nothing has been added.
            Unreachable: it could not be read; the satellite offers it again.
        """
        async with self._counting:
            if self._sum.leases.issuperset(offer.lease_ids):
                return  # counted before; the answer was lost
            if offer.step != self.held_step:
                raise Refused(f"the sum of {offer.cell} is of step {offer.step}, the core is at step {self.held_step}")
            staged = torch.empty(self._model.layout.numel)
            await self._read(offer, staged)
            await self._count(offer.cell, offer.epoch, offer.step, list(offer.lease_ids))
            # Not in the torch thread: that one may be in mid-pass for a minute, and the satellite waits.
            await asyncio.to_thread(self._sum.add, list(offer.lease_ids), list(offer.indices), offer.statistics, staged)
            log.info("gradients taken in", cell=offer.cell, step=offer.step, micro_steps=len(offer.lease_ids))

    async def apply(self, step: int, micro_steps: int) -> None:
        """Update, make the checkpoint durable, report; in this order, so that a committed step can always be loaded."""
        async with self._counting:
            if self.held_step == step:
                if micro_steps not in (-1, len(self._sum.leases)):
                    raise RuntimeError(
                        f"step {step} has {micro_steps} micro-steps, but {len(self._sum.leases)} are in the sum of this process; "
                        "ending it, so that the step is computed again from the last checkpoint"
                    )
                await in_torch(self._torch_thread, self._update)
            elif self.held_step != step + 1 or self._applied is None:
                raise RuntimeError(
                    f"told to finish step {step}, but the weights are those of step {self.held_step}; ending, to start from the last checkpoint"
                )
            applied = self._applied
            assert applied is not None
        await self._insist(lambda: self._conductor.applied(step, applied))
        needed = frozenset({self._published_step})
        await in_torch(self._torch_thread, lambda: checkpoint.prune(self._settings.checkpoints, self._settings.keep, self.held_step, needed))

    async def publish(self, version: int) -> None:
        present = self._published.present
        if present is None or present.version != version or present.step != self.held_step:
            await in_torch(self._torch_thread, lambda: self._publish(version))
            present = self._published.present
        assert present is not None
        report = Published(version, present.step, present.digest)
        await self._insist(lambda: self._conductor.published(report))
        log.info("weights published", version=version, step=present.step, digest=present.digest)

    def close(self) -> None:
        self._of_step.close()
        self._published.close()

    async def _training_state(self) -> TrainingState:
        while True:
            try:
                return await self._conductor.training()
            except Unreachable:
                await asyncio.sleep(RETRY_SECONDS)

    def _restore(self, state: TrainingState) -> None:
        settings, model, weights = self._settings, self._model, self._weights
        needed = frozenset({state.published_step}) if state.digest else frozenset()
        if settings.checkpoints.exists():
            checkpoint.prune(settings.checkpoints, settings.keep, state.committed_step, needed | {state.committed_step})
        if state.committed_step > 0:
            folder = settings.checkpoints / state.checkpoint
            facts = checkpoint.read_facts(folder)
            if facts.step != state.committed_step:
                raise RuntimeError(f"{folder} holds step {facts.step}, but the conductor committed step {state.committed_step}")
            self._read_optimizer(folder, facts)
        if state.digest and state.published_step != state.committed_step:
            if state.published_step == 0:
                self._published.take(weights, 0, state.policy_version)  # still the initial ones
            else:
                stored = torch.empty(model.layout.numel)
                model.read(settings.checkpoints / checkpoint.name_of(state.published_step) / checkpoint.WEIGHTS, stored)
                self._published.take(stored, state.published_step, state.policy_version)
        if state.committed_step > 0:
            model.read(settings.checkpoints / state.checkpoint / checkpoint.WEIGHTS, weights)
        model.step = state.committed_step
        if state.digest:
            if state.published_step == state.committed_step:
                self._published.take(weights, state.committed_step, state.policy_version)
            self._check_published(state)
            self._published_step = state.published_step
        self._begin_step()
        give_back()

    def _check_published(self, state: TrainingState) -> None:
        present = self._published.present
        if present is None or present.digest != state.digest:
            raise RuntimeError(
                f"version {state.policy_version} was published with digest {state.digest}, but the weights of step {state.published_step} "
                f"have {present.digest if present else 'none'}; restore the checkpoint folder {self._settings.checkpoints}"
            )

    def _read_optimizer(self, folder: Path, facts: checkpoint.Facts) -> None:
        moments = dict(self._moments())
        for name, stored in checkpoint.read_safetensors(folder / checkpoint.OPTIMIZER):
            moments[name].copy_(stored)
        self._optimizer.updates = facts.updates

    def _moments(self) -> list[tuple[str, Tensor]]:
        return [("first_moment", self._optimizer.first_moment), ("second_moment", self._optimizer.second_moment)]

    def _begin_step(self) -> None:
        """Serve the weights as they are now and count what is computed from them."""
        self._sum = StepSum(self._model.step, self._weights, self._settings.deterministic)
        serve = self._of_step.alias if self._weights.device.type == "cpu" else self._of_step.take
        serve(self._weights, self._model.step, BETWEEN_PUBLICATIONS)

    def _update(self) -> None:
        """In the torch thread. A step of which nothing could be trained leaves the weights as they are."""
        self._of_step.retire()
        figures = summary(self._sum.sums)
        gradient = self._sum.total()
        if gradient is not None:
            figures.update(self._optimizer.update(gradient))
        self._model.step += 1
        self._begin_step()
        self._applied = self._write_checkpoint(figures)

    def _write_checkpoint(self, figures: dict[str, float]) -> Applied:
        settings, model = self._settings, self._model
        began = time.monotonic()
        digest = digest_of(self._weights, model.layout, settings.published_dtype)
        name = checkpoint.name_of(model.step)
        on_host = self._weights.cpu()
        weights = [(slot.name, slot.of(on_host)) for slot in model.layout.slots]
        moments = [(moment_name, moment.cpu()) for moment_name, moment in self._moments()]
        facts = checkpoint.Facts(model.step, self._optimizer.updates, digest)
        while True:  # a step that cannot be kept is not committed: the job waits for room, as its other parts do
            try:
                checkpoint.write(settings.checkpoints / name, facts, weights, moments, settings.model_folder, settings.store)
                break
            except checkpoint.DiskFull as trouble:
                log.error("no room for the checkpoint, trying again", step=model.step, reason=str(trouble))
                time.sleep(DISK_SECONDS)
        self.ledger.checkpoints += 1
        self.ledger.checkpoint_seconds += time.monotonic() - began
        self.ledger.checkpoint_bytes = sum(file.stat().st_size for file in (settings.checkpoints / name).rglob("*"))
        log.info("checkpoint written", step=model.step, checkpoint=name, digest=digest, **figures)
        return Applied(name, digest, figures)

    def _publish(self, version: int) -> None:
        began = time.monotonic()
        taken = self._published.take(self._weights, self._model.step, version)
        self._published_step = self._model.step
        self.ledger.publications += 1
        self.ledger.publication_seconds += time.monotonic() - began
        self.ledger.publication_bytes = taken.source.nbytes

    def _drop_gradients(self) -> None:
        self._model.drop_gradients()
        give_back()

    async def _read(self, offer: GradientSum, into: Tensor) -> None:
        target = region(into)
        for _ in range(PULLS):
            try:
                await asyncio.to_thread(self._transport.pull, offer.source, target, PULL_SECONDS)
            except TransferFailed as cause:
                raise Unreachable(f"the sum of {offer.cell} could not be read: {cause}") from cause
            if await asyncio.to_thread(checksum.of_memory, target.address, target.nbytes) == offer.checksum:
                return
            self.ledger.checksum_failures["Gradients"] += 1
            log.warning("gradients arrived damaged, reading again", cell=offer.cell, step=offer.step)
        raise Unreachable(f"the sum of {offer.cell} arrived damaged {PULLS} times; its memory is not what it announced")

    async def _count(self, cell: str, epoch: int, step: int, leases: list[str]) -> None:
        """Have the conductor count these leases. Refused: it does not, and nothing may be added."""
        self._sum.reserve()
        contribution = Contribution(cell, epoch, tuple(leases), self._who.incarnation)
        await self._insist(lambda: self._conductor.contribute(step, contribution))

    async def _insist[T](self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call whose effect must be known before anything else may happen."""
        while True:
            try:
                return await call()
            except Unreachable as trouble:
                log.warning("the conductor does not answer, asking again", reason=str(trouble))
                await asyncio.sleep(RETRY_SECONDS)


def _held(snapshot: Snapshot, wanted: str, fits: Callable[[WeightSnapshot], bool]) -> WeightSnapshot:
    present = snapshot.present
    if present is None or not fits(present):
        held = "none now" if present is None else f"step {present.step}, version {present.version}"
        raise Refused(f"weights of {wanted} are not served: {held}; ask again, or read what the job needs now")
    return present

"""The loop of every trainer: ask the conductor what to do, do it. Core and satellites differ in where weights come from and gradients go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from tidemill.telemetry.logs import Log
from tidemill.trajectory.sequence import Sequence
from tidemill.transfer import TransferFailed
from tidemill.wire.conductor import ConductorClient, LeaseIds, LeaseReply, LeaseRequest, MicroStep, Work
from tidemill.wire.http import Refused, Rejected, Unreachable
from tidemill.wire.trainer import Join, Leave, TrainerState
from tidemill_trainer.exchange import Part
from tidemill_trainer.ledger import COMPUTE, HAND_OVER, PUBLISH, UPDATE, WAITING_FOR_WEIGHTS, Ledger
from tidemill_trainer.torch_thread import in_torch

log = Log(__name__)

POLL_SECONDS = 2.0
"""Longest wait of one question. A satellite that is told to leave waits no longer than this for the answer that is under way."""

RETRY_SECONDS = 0.2
IDLE_SECONDS = 0.5
HAND_OVER_SECONDS = 120.0
"""A sum is handed over when it is this old, so that a dead cell loses no more than this."""

HAND_OVER_DEADLINE_SECONDS = 60.0
"""Then its micro-steps are given back."""


class Home(Protocol):
    """What differs between the core and a satellite."""

    always_asks: bool  # the core does, also while its cell is in rollout
    ledger: Ledger

    @property
    def held_step(self) -> int:
        """Steps in the weights it holds, -1 without."""
        ...

    async def hold(self, step: int) -> None:
        """Have the weights after `step` updates. Raises Unreachable, Refused or TransferFailed."""
        ...

    async def hand_over(self, part: Part) -> None:
        """Get the gradient buffer counted as `part`.

        Raises:
            Refused: nobody will ever count it.
            Unreachable or TransferFailed: it may be tried again.
        """
        ...

    async def apply(self, step: int, micro_steps: int) -> None: ...

    async def publish(self, version: int) -> None: ...

    async def rest(self) -> None:
        """Give memory back: nothing is computed until the next `hold`."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    cell: str
    incarnation: str


class Worker:
    def __init__(
        self,
        who: Identity,
        conductor: ConductorClient,
        home: Home,
        compute: Callable[[tuple[Sequence, ...]], dict[str, float]],
        clear: Callable[[], None],
        torch_thread: Executor,
        deterministic: bool,
        hand_over_seconds: float = HAND_OVER_SECONDS,
    ) -> None:
        """`compute` adds gradients to the buffer and returns sums, `clear` empties it; both run in `torch_thread`."""
        self._who = who
        self._conductor = conductor
        self._home = home
        self._compute = compute
        self._clear = clear
        self._torch_thread = torch_thread
        self._deterministic = deterministic
        self._hand_over_seconds = hand_over_seconds
        self._epoch = 0
        self._asked_epoch = 0  # leases are given under the epoch that was asked with
        self._training = False
        self._ended = False  # the conductor said so for this epoch
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()  # not training, nothing in hand
        self._part: Part | None = None
        self._computing: str | None = None  # a lease
        self._lease_seconds = 600.0
        self._leased = asyncio.Event()  # something may need to be renewed
        self._doing = "starting"

    @property
    def state(self) -> TrainerState:
        return TrainerState(self._who.cell, self._who.incarnation, self._training, self._epoch, self._home.held_step, self._doing)

    def join(self, order: Join) -> TrainerState:
        if order.epoch < self._epoch or (order.epoch == self._epoch and not self._training and self._epoch > 0):
            raise Refused(
                f"{self._who.cell}: join of epoch {order.epoch}, but epoch {self._epoch} was joined or left already; read the current grant"
            )
        if order.epoch > self._epoch or not self._training:
            self._epoch, self._training, self._ended = order.epoch, True, False
            self._settled.clear()
            self._wake.set()
            log.info("joined", epoch=order.epoch)
        return self.state

    async def leave(self, order: Leave, deadline_seconds: float) -> TrainerState:
        """Finish the micro-step under way, hand over, give memory back; then answer."""
        if order.epoch < self._epoch:
            raise Refused(f"{self._who.cell}: leave of epoch {order.epoch}, but epoch {self._epoch} has begun; read the current grant")
        if self._training:
            log.info("leaving", epoch=order.epoch)
        self._epoch, self._training = order.epoch, False
        self._wake.set()
        try:
            await asyncio.wait_for(self._settled.wait(), deadline_seconds)
        except TimeoutError as cause:
            raise Unreachable(f"{self._who.cell} is still {self._doing}; ask again") from cause
        return self.state

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew())
            tasks.create_task(self._work())

    async def give_back_leases(self) -> None:
        """At the end of the process."""
        if self._leases():
            await self._conductor.return_leases(LeaseIds(self._who.cell, self._leases()))

    @property
    def _joined(self) -> bool:
        return self._training and not self._ended

    def _spend_on(self, what: str) -> None:
        """Of the time for which it is joined; the rest is the agent's to tell of."""
        self._home.ledger.time.turn_to(what if self._joined else "")

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            if not self._training or self._ended:
                self._spend_on("")
                await self._settle()
                if not self._home.always_asks:
                    await self._wake.wait()
                    continue
            await self._obey(await self._ask())

    async def _settle(self) -> None:
        await self._hand_over()
        if not self._training and not self._settled.is_set():
            await self._home.rest()
            if not self._training:  # a join may have come meanwhile
                self._doing = "at rest"
                self._settled.set()

    async def _ask(self) -> LeaseReply | None:
        """What to do; None: ask again.

        Raises:
            Refused: this process has been replaced, or stands where the job no longer is. It must end.
        """
        # With a sum in hand "nothing to do" must come at once: then the sum is handed over, and the step may be waiting for it.
        wait = 0.0 if self._part else POLL_SECONDS
        self._asked_epoch = self._epoch
        request = LeaseRequest(
            self._who.cell,
            self._asked_epoch,
            self._who.incarnation,
            checkpoint_step=self._home.held_step if self._home.always_asks else -1,
            wait_seconds=wait,
            holding=self._leases(),
        )
        self._spend_on("")  # on what, the answer says
        began = self._home.ledger.now()
        try:
            reply = await self._unless_woken(self._conductor.lease(request))
        except Unreachable as trouble:
            self._doing = f"waiting for the conductor: {trouble}"
            await asyncio.sleep(RETRY_SECONDS)
            if self._joined:
                self._home.ledger.waited(began, 0.0)
            return None
        if self._joined:
            self._home.ledger.waited(began, 0.0 if reply is None else reply.closed_seconds)
        if reply is None:
            return None
        if reply.work is Work.OVER and self._asked_epoch != self._epoch:
            return None  # it speaks of an epoch before the present one
        return reply

    async def _unless_woken(self, question: Coroutine[None, None, LeaseReply]) -> LeaseReply | None:
        """The core's question is given up when a join or leave comes: neither then waits for an answer that speaks of the epoch before.

        What was leased to it in that moment is freed by its next question, which does not name it. A satellite's question is answered as soon as
        its grant ends, and it might not ask again.
        """
        if not self._home.always_asks:
            return await question
        asking, waking = asyncio.ensure_future(question), asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((asking, waking), return_when=asyncio.FIRST_COMPLETED)
            return await asking if asking.done() else None
        finally:
            waking.cancel()
            asking.cancel()

    async def _obey(self, reply: LeaseReply | None) -> None:
        if reply is None:
            return
        match reply.work:
            case Work.COMPUTE:
                self._lease_seconds = reply.lease_seconds
                for micro_step in reply.micro_steps:
                    await self._one(micro_step)
            case Work.WAIT:
                self._doing = "waiting for work"
                if self._part:
                    await self._hand_over()
                else:
                    await asyncio.sleep(RETRY_SECONDS / 10)  # a conductor that does not wait is not asked in a tight loop
            case Work.APPLY:
                await self._hand_over()
                self._doing = f"updating the weights, step {reply.step}"
                self._spend_on(UPDATE)
                await self._home.apply(reply.step, reply.count)
            case Work.PUBLISH:
                self._doing = f"publishing version {reply.version}"
                self._spend_on(PUBLISH)
                await self._home.publish(reply.version)
            case Work.OVER:
                await self._hand_over()
                self._ended = True
                if self._home.always_asks:
                    await self._nap()

    async def _nap(self) -> None:
        """Pause, unless a join or leave ends it."""
        try:
            await asyncio.wait_for(self._wake.wait(), IDLE_SECONDS)
        except TimeoutError:
            return

    async def _one(self, micro_step: MicroStep) -> None:
        self._computing = micro_step.lease
        self._leased.set()
        try:
            if not self._training:
                await self._return([micro_step.lease])
                return
            if self._part and (self._part.step, self._part.epoch) != (micro_step.step, self._asked_epoch):
                await self._hand_over()
            try:
                self._doing = f"reading the weights of step {micro_step.step}"
                self._spend_on(WAITING_FOR_WEIGHTS)
                await self._home.hold(micro_step.step)
            except (Unreachable, Refused, Rejected, TransferFailed) as trouble:
                log.warning("no weights for a micro-step, it is given back", step=micro_step.step, reason=str(trouble))
                await self._return([micro_step.lease])
                await asyncio.sleep(RETRY_SECONDS)
                return
            self._doing = f"forward-backward {micro_step.index} of step {micro_step.step}"
            self._spend_on(COMPUTE)
            if self._part is None:
                await in_torch(self._torch_thread, self._clear)
                self._part = Part(micro_step.step, self._asked_epoch, time.monotonic())
            sums = await in_torch(self._torch_thread, lambda: self._compute(micro_step.sequences))
            self._part.add(micro_step, sums)
            self._home.ledger.computed(sums)
        finally:
            self._computing = None
        log.info("micro-step computed", step=micro_step.step, index=micro_step.index, seconds=round(sums["compute_seconds"], 3))
        if self._deterministic or time.monotonic() - self._part.since > self._hand_over_seconds:
            await self._hand_over()

    async def _hand_over(self) -> None:
        """Get what is in hand counted, or give it back. Afterwards nothing is in hand."""
        part = self._part
        if part is None:
            return
        self._spend_on(HAND_OVER)
        self._doing = f"handing over {len(part.leases)} micro-steps of step {part.step}"
        deadline = time.monotonic() + HAND_OVER_DEADLINE_SECONDS
        while True:
            try:
                await self._home.hand_over(part)
                log.info("gradients handed over", step=part.step, micro_steps=len(part.leases))
                break
            except Refused as refusal:
                log.warning("gradients refused, they are dropped", step=part.step, indices=part.indices, reason=str(refusal))
                break
            except (Unreachable, Rejected, TransferFailed) as trouble:
                if time.monotonic() > deadline:
                    log.warning("gradients could not be handed over, the micro-steps are given back", step=part.step, reason=str(trouble))
                    await self._return(part.leases)
                    break
                await asyncio.sleep(RETRY_SECONDS)
        self._part = None

    async def _return(self, leases: list[str]) -> None:
        try:
            await self._conductor.return_leases(LeaseIds(self._who.cell, tuple(leases)))
        except (Unreachable, Refused, Rejected) as trouble:
            log.warning("leases not returned, they will expire", leases=leases, reason=str(trouble))

    async def _renew(self) -> None:
        while True:
            await self._leased.wait()
            await asyncio.sleep(self._lease_seconds / 3)
            leases = self._leases()
            if not leases:
                self._leased.clear()
                continue
            try:
                await self._conductor.renew_leases(LeaseIds(self._who.cell, leases))
            except (Unreachable, Refused, Rejected) as trouble:
                log.warning("leases not renewed", leases=leases, reason=str(trouble))

    def _leases(self) -> tuple[str, ...]:
        held = self._part.leases if self._part else []
        return (*held, self._computing) if self._computing and self._computing not in held else tuple(held)

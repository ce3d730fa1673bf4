"""The agent: reads where the cell stands, asks the state machine what comes next, does it, and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass

import msgspec

from tidemill.telemetry.logs import Log
from tidemill.wire.cell import CellKind, CellPhase, CellState, Flip, RankOrder, RankState, Role, RoleOrder
from tidemill.wire.conductor import ConductorClient, Grant, Tide
from tidemill.wire.http import Board, Refused, WireError
from tidemill.wire.trainer import TrainerClient
from tidemill_cell import roles
from tidemill_cell.children import Child, Health
from tidemill_cell.flips import FlipUnderWay
from tidemill_cell.identity import Identity
from tidemill_cell.ledger import Ledger, idle_cause, role_now
from tidemill_cell.phases import Blame, PhaseFailed, Phases
from tidemill_cell.ranks import Ranks
from tidemill_cell.roles import LIMITS, Acknowledged, Blocked, Phase, Standing, Tidings, Weights


@dataclass(frozen=True, slots=True)
class Pace:
    report_seconds: float = 2.0  # also when nothing has changed
    route_seconds: float = 3.0  # after which a route is put again, for a gateway that was restarted
    conductor_pause_seconds: float = 0.5  # before it is asked again after it did not answer
    tide_seconds: float = 20.0  # one long poll
    tide_rest_seconds: float = 0.05  # between two; the tide changes with every execution, what concerns a cell does not


class Agent:
    """One cell. `order` and `state` are its face to the outside, `run` is its life."""

    def __init__(
        self,
        identity: Identity,
        engine: Child,
        trainer: Child | None,
        trainer_client: TrainerClient | None,
        conductor: ConductorClient,
        pace: Pace | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.identity = identity
        self.board = Board()
        self.ledger = Ledger()
        self.live_calls: Callable[[], int] = lambda: 0
        self._engine = engine
        self._trainer = trainer
        self._trainer_client = trainer_client
        self._conductor = conductor
        self._pace = pace or Pace()
        self._ranks = ranks or Ranks(identity.cell)
        self._log = Log(__name__, cell=identity.cell)
        self._stands = Standing()
        self._tidings = Tidings()
        self._order: RoleOrder | None = None
        self._acknowledged: Acknowledged | None = None
        self._flip: FlipUnderWay | None = None
        self._last_flip: Flip | None = None
        self._trouble = ""
        self._doing: Phase | None = None
        self._failing: Phase | None = None
        self._failures = 0  # in a row, of that phase
        self._engine_life = ""
        self._trainer_life = ""
        self._trainer_incarnation = ""
        self._leaving = False
        self._left = asyncio.Event()
        self._wake = asyncio.Event()  # something happened that the next phase may depend on
        self._ordered = asyncio.Event()  # a newer order came
        self._changed = asyncio.Event()  # the state may read differently now
        self._announced = self._reading()

    def state(self) -> CellState:
        return msgspec.structs.replace(self._reading(), live_calls=self.live_calls(), sequence=self.board.sequence)

    def refusal(self, epoch: int) -> str:
        """Why a call routed under `epoch` is not served here; "" when it is."""
        if self._leaving:
            return "the cell is leaving; send the call to another"
        return roles.refusal(self._order, self._stands, epoch)

    def order(self, order: RoleOrder) -> None:
        """Take an order to heart. What follows from it happens in `run`.

        Raises:
            Refused: it is older than the order held, or contradicts it.
        """
        if not roles.is_news(self._order, order, self.identity.kind):
            return
        self._log.info("order taken", role=order.role, epoch=order.epoch, before=self._order and self._order.epoch)
        self._order = order
        self._flip = self._record_for(order)
        self._ordered.set()
        self._touch()

    def note_rank(self, told: RankState) -> RankOrder:
        """One of the cell's other nodes says how it stands. Raises `Rejected` when it is none of this cell."""
        self._ranks.note(told)
        return RankOrder(Role.ROLLOUT, -1) if self._order is None else RankOrder(self._order.role, self._order.epoch)

    async def leave(self) -> None:
        """Take nothing more, and hand over what is here: calls to other cells, gradients to the core, leases to the conductor.

        Returns when that is done. Whoever calls it sets the deadline, and then ends `run`.
        """
        self._log.info("leaving")
        self._leaving = True
        self._ordered.set()
        self._touch()
        await self._left.wait()

    async def run(self, phases: Phases) -> None:
        """Live until cancelled. Children end with it."""
        for child in self.children:
            child.on_change = self._touch
        self._ranks.on_change = self._touch
        async with asyncio.TaskGroup() as tasks:
            for child in self.children:
                tasks.create_task(child.run())
            tasks.create_task(self._announce())
            tasks.create_task(self._report())
            tasks.create_task(self._follow_the_tide())
            tasks.create_task(self._converge(phases))

    @property
    def children(self) -> tuple[Child, ...]:
        return (self._engine,) if self._trainer is None else (self._engine, self._trainer)

    def _record_for(self, order: RoleOrder) -> FlipUnderWay | None:
        """A cell that comes up or turns back has no flip to tell of; one whose orders follow each other quickly makes one flip."""
        if self._acknowledged is None or self._acknowledged.role is order.role:
            return None
        if self._flip is not None and self._flip.to is order.role:
            self._flip.epoch = order.epoch
            return self._flip
        return FlipUnderWay(order.role, order.epoch)

    def account(self) -> None:
        """What is done from now on may be something else."""
        role = role_now(self._order, self._acknowledged, any(child.health is Health.FAILED for child in self.children))
        to = None if self._order is None else self._order.role
        self.ledger.stands(role, idle_cause(role, to, self._doing, self._stands, serves=self.live_calls() > 0))

    def _touch(self) -> None:
        self.account()
        self._wake.set()
        self._changed.set()

    def _reading(self) -> CellState:
        me, stands, acknowledged = self.identity, self._stands, self._acknowledged
        failed = next((child for child in self.children if child.health is Health.FAILED), None)
        return CellState(
            cell=me.cell,
            kind=me.kind,
            ordinal=me.ordinal,
            url=me.url,
            phase=self._phase(failed is not None),
            role=acknowledged.role if acknowledged else Role.ROLLOUT,
            epoch=acknowledged.epoch if acknowledged else -1,
            capacity=me.capacity,
            policy_version=stands.weights.version if stands.weights else -1,
            weights_digest=stands.weights.digest if stands.weights else "",
            trainer_url=(me.trainer_url or self._trainer_client.base_url) if self._trainer_client and self._trainer_incarnation else "",
            trainer_incarnation=self._trainer_incarnation,
            engine_incarnation=self._engine_life,
            reason=failed.reason if failed else self._trouble,
            last_flip=self._last_flip,
        )

    def _phase(self, failed: bool) -> CellPhase:
        if failed:
            return CellPhase.FAILED
        return CellPhase.LEAVING if self._leaving else roles.cell_phase(self._order, self._acknowledged, self._stands)

    async def _announce(self) -> None:
        """Tell those who wait for a newer state."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            reading = self._reading()
            if reading != self._announced:
                self._announced = reading
                await self.board.bump()

    async def _report(self) -> None:
        """Tell the conductor at every change and every few seconds; its answer is the current grant, and so an order."""
        heard = True
        while True:
            told = self.board.sequence
            try:
                grant = await self._conductor.report_cell(self.state())
            except WireError as trouble:
                if heard:
                    self._log.warning("conductor does not take reports", trouble=str(trouble))
                heard = False
                await asyncio.sleep(self._pace.conductor_pause_seconds)
                continue
            heard = True
            self._obey(grant)
            await self.board.newer_than(told, self._pace.report_seconds)

    def _obey(self, grant: Grant) -> None:
        try:
            self.order(RoleOrder(grant.role, grant.epoch, grant.destinations))
        except Refused as refusal:  # a controller's order has overtaken this answer
            self._log.info("grant not obeyed", epoch=grant.epoch, role=grant.role, reason=str(refusal))

    async def _follow_the_tide(self) -> None:
        seen = -1
        while True:
            try:
                tide = await self._conductor.tide(seen, self._pace.tide_seconds)
            except WireError:
                seen = -1  # a restarted conductor counts anew
                await asyncio.sleep(self._pace.conductor_pause_seconds)
                continue
            seen = tide.sequence
            published = Weights(tide.policy_version, tide.weights_digest) if tide.weights_digest else None
            cordoned = any(c.cordoned for c in tide.cells if c.cell == self.identity.cell)
            tidings = Tidings(published, self._core_url(tide), cordoned)
            if tidings != self._tidings:
                self._log.info("tidings", published=tide.policy_version, digest=tide.weights_digest, core_url=tidings.core_url, cordoned=cordoned)
                self._tidings = tidings
                self._wake.set()
            await asyncio.sleep(self._pace.tide_rest_seconds)

    def _core_url(self, tide: Tide) -> str:
        if self.identity.kind is CellKind.CORE and self._trainer_client is not None:
            return self._trainer_client.base_url
        return tide.core_url

    async def _converge(self, phases: Phases) -> None:
        """Phase by phase to where the newest order wants the cell, and back to it whenever something has changed."""
        while True:
            self._wake.clear()
            await self._look_at_children()
            self._ordered.clear()
            order, tidings = self._order, self._tidings
            if order is None:
                if self._leaving:
                    self._left.set()  # nothing was ever taken
                await self._rest(self._pace.route_seconds)
                continue
            match roles.before_the_end(self._stands) if self._leaving else roles.next_phase(order, self._stands, tidings):
                case None if self._leaving:
                    self._left.set()
                    await self._rest(self._pace.route_seconds)
                case None if lagging := self._ranks.lagging(order.role, order.epoch):
                    self._tell(lagging)
                    await self._rest(self._pace.route_seconds)
                case None:
                    self._settle(order)
                    self._tell("cordoned: serves nothing until that is taken back" if tidings.cordoned and order.role is Role.ROLLOUT else "")
                    if not await self._rest(self._pace.route_seconds) and self._stands.routed is not None:
                        await self._put_route_again(phases, order, tidings)
                case Blocked(reason):
                    self._tell(self._ranks.trouble() or reason)
                    await self._rest(self._pace.route_seconds)
                case phase:
                    self._tell(phase)
                    await self._attempt(phases, phase, order, tidings)

    async def _look_at_children(self) -> None:
        """A child that is gone, or another one than before, changes where the cell stands."""
        engine_life = f"{self._engine.incarnation} {self._ranks.life}".strip()  # an engine of several nodes is another one when a part of it is
        if not self._engine.healthy or self._ranks.trouble():
            self._engine_life, self._stands = "", roles.engine_down(self._stands)
        elif engine_life != self._engine_life:
            self._engine_life, self._stands = engine_life, roles.engine_up(self._stands)
        if self._trainer is not None and self._trainer_client is not None:
            if not self._trainer.healthy:
                self._trainer_life, self._trainer_incarnation, self._stands = "", "", roles.trainer_down(self._stands)
            elif self._trainer.incarnation != self._trainer_life:
                life = self._trainer.incarnation
                self._stands = roles.trainer_down(self._stands)
                try:
                    self._trainer_incarnation = (await self._trainer_client.state()).incarnation
                    self._trainer_life, self._stands = life, roles.trainer_up(self._stands)
                except WireError as trouble:
                    self._log.info("trainer is not ready yet", reason=str(trouble))
        self._changed.set()

    async def _rest(self, seconds: float) -> bool:
        """Wait for something to happen; whether it did."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _tell(self, what: str) -> None:
        self.account()
        self._trouble = what
        self._changed.set()

    def _settle(self, order: RoleOrder) -> None:
        self._failing = None
        if self._acknowledged == Acknowledged(order.role, order.epoch):
            return
        self._acknowledged = Acknowledged(order.role, order.epoch)
        if self._flip is not None:
            self._last_flip, self._flip = self._flip.ended(self.identity.cell), None
            self.ledger.flipped(self._last_flip)
            self._log.info("flip ended", to=order.role, epoch=order.epoch, seconds=self._last_flip.seconds, phases=self._last_flip.phases)
        self._log.info("role acknowledged", role=order.role, epoch=order.epoch)

    async def _attempt(self, phases: Phases, phase: Phase, order: RoleOrder, tidings: Tidings) -> None:
        self._doing = phase
        self.account()
        try:
            with self._flip.timed(phase) if self._flip is not None else nullcontext():
                moved = await self._unless_superseded(phase, phases.perform(phase, order, tidings))
        except PhaseFailed as failure:
            self.ledger.phase_failures += 1
            self._stands = self._stands if failure.had_no_effect else roles.after_failure(phase, self._stands)
            await self._after_failed(phase, order, failure)
            return
        finally:
            self._doing = None
        self._failing = None
        self._stands = roles.after(phase, order, self._stands, tidings)
        if self._flip is not None:
            self._flip.calls_in_flight += moved
        self._log.info("phase done", phase=phase, epoch=order.epoch)

    async def _unless_superseded(self, phase: Phase, work: Coroutine[None, None, int]) -> int:
        if not LIMITS[phase].interruptible:
            return await work
        doing, newer = asyncio.ensure_future(work), asyncio.ensure_future(self._ordered.wait())
        try:
            await asyncio.wait((doing, newer), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            raise PhaseFailed(f"{phase} was superseded by a newer order", Blame.ELSEWHERE)
        finally:
            doing.cancel()
            newer.cancel()

    async def _after_failed(self, phase: Phase, order: RoleOrder, failure: PhaseFailed) -> None:
        """Try again after a pause; a child that does not obey several times is restarted."""
        self._failures = self._failures + 1 if phase is self._failing else 1
        self._failing = phase
        self._log.warning("phase failed", phase=phase, epoch=order.epoch, attempt=self._failures, reason=str(failure))
        self._tell(str(failure))
        child = {Blame.ENGINE: self._engine, Blame.TRAINER: self._trainer, Blame.ELSEWHERE: None}[failure.blame]
        if child is not None and child.healthy and self._failures >= LIMITS[phase].attempts:
            child.restart(f"did not do what it should ({failure})")
            self._failing = None
        await self._rest(roles.pause_before_retry(self._failures))

    async def _put_route_again(self, phases: Phases, order: RoleOrder, tidings: Tidings) -> None:
        try:
            await self._unless_superseded(Phase.ROUTE, phases.perform(Phase.ROUTE, order, tidings))
        except PhaseFailed as failure:
            self._log.warning("route not confirmed", epoch=order.epoch, reason=str(failure))
            self._tell(str(failure))

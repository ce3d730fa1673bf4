"""What is done in each phase of a flip, and whose fault it is when it cannot be done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum

from tidemill.wire.cell import CellKind, RoleOrder
from tidemill.wire.engine_control import EngineControl
from tidemill.wire.gateway import Drain, GatewayClient, Route
from tidemill.wire.http import WireError
from tidemill.wire.trainer import Join, Leave, TrainerClient
from tidemill_cell.identity import Identity
from tidemill_cell.ledger import Ledger
from tidemill_cell.proxy import Proxy
from tidemill_cell.roles import LIMITS, Phase, Tidings
from tidemill_cell.weights import NotLoaded, WrongWeights, bring_to


class Blame(StrEnum):
    ENGINE = "engine"
    TRAINER = "trainer"
    ELSEWHERE = "elsewhere"


_BLAME = {
    Phase.DRAIN: Blame.ELSEWHERE,
    Phase.SLEEP: Blame.ENGINE,
    Phase.JOIN: Blame.TRAINER,
    Phase.LEAVE: Blame.TRAINER,
    Phase.WAKE: Blame.ENGINE,
    Phase.WEIGHTS: Blame.ENGINE,
    Phase.ROUTE: Blame.ELSEWHERE,
}


class PhaseFailed(Exception):
    def __init__(self, reason: str, blame: Blame, *, had_no_effect: bool = False) -> None:
        super().__init__(reason)
        self.blame = blame
        self.had_no_effect = had_no_effect


class Phases:
    """The other processes, as a flip needs them. `trainer_at` gives the client of the trainer at an address."""

    def __init__(
        self,
        identity: Identity,
        gateway: GatewayClient,
        engine: EngineControl,
        trainer: TrainerClient | None,
        trainer_at: Callable[[str], TrainerClient],
        proxy: Proxy,
        recompute_kv: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        self._identity = identity
        self._gateway = gateway
        self._engine = engine
        self._trainer = trainer
        self._trainer_at = trainer_at
        self._proxy = proxy
        self._recompute_kv = recompute_kv
        self._ledger = ledger or Ledger()

    async def perform(self, phase: Phase, order: RoleOrder, tidings: Tidings) -> int:
        """Do `phase`; the number of calls that were moved away having sampled at least one token here (drain only).

        Raises:
            PhaseFailed: it was refused, did not succeed, or took longer than its deadline.
        """
        deadline_seconds = LIMITS[phase].deadline_seconds
        try:
            async with asyncio.timeout(deadline_seconds):
                return await self._perform(phase, order, tidings)
        except TimeoutError as cause:
            raise PhaseFailed(f"{phase} took longer than {deadline_seconds:g} s", _BLAME[phase]) from cause
        except WireError as cause:
            raise PhaseFailed(f"{phase}: {cause}", _BLAME[phase]) from cause
        except NotLoaded as cause:
            self._ledger.load_failures["NotLoaded"] += 1
            raise PhaseFailed(f"{phase}: {cause}", Blame.ELSEWHERE, had_no_effect=True) from cause
        except WrongWeights as cause:
            self._ledger.load_failures["Checksum"] += 1
            raise PhaseFailed(f"{phase}: {cause}", Blame.ELSEWHERE) from cause

    async def _perform(self, phase: Phase, order: RoleOrder, tidings: Tidings) -> int:
        limit = LIMITS[phase].deadline_seconds
        match phase:
            case Phase.DRAIN:
                drained = await self._gateway.drain(self._identity.cell, Drain(order.epoch, order.destinations), limit)
                return drained.moved_with_tokens
            case Phase.SLEEP:
                self._proxy.cut()
                await self._engine.sleep(limit)
            case Phase.WAKE:
                await self._engine.wake(limit)
            case Phase.JOIN:
                core_url = "" if self._identity.kind is CellKind.CORE else tidings.core_url
                await self._own_trainer.join(Join(order.epoch, core_url))
            case Phase.LEAVE:
                await self._own_trainer.leave(Leave(order.epoch), limit)
            case Phase.WEIGHTS:
                assert tidings.published is not None
                began = time.monotonic()
                nbytes = await bring_to(tidings.published, self._trainer_at(tidings.core_url), self._engine, self._recompute_kv)
                self._ledger.loaded(time.monotonic() - began, nbytes)
            case Phase.ROUTE:
                assert tidings.published is not None
                me = self._identity
                await self._gateway.put_route(Route(me.cell, order.epoch, tidings.published.version, me.url, me.capacity, me.ordinal))
        return 0

    @property
    def _own_trainer(self) -> TrainerClient:
        assert self._trainer is not None, "a standalone cell takes no order to train"
        return self._trainer

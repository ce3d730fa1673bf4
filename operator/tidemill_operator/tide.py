"""The waterlevel loop of one running job: hold the term, read the tide, carry out what `flips.py` makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from tidemill.api.rljob import RLJob
from tidemill.telemetry.logs import Log
from tidemill.wire.cell import CellClient, Flip, RoleOrder
from tidemill.wire.conductor import Authority, ConductorClient, Constraints, Grant, GrantRequest, JobPhase, SettingsChange, Suspend, Tide
from tidemill.wire.http import Refused, Rejected, Unreachable, WireError
from tidemill.wire.trust import Credential
from tidemill_operator.caches import Caches, Key
from tidemill_operator.flips import REPEAT_SECONDS, Ask, Carry, Constrain, FlipAction, Hold, plan_flip
from tidemill_operator.kube import Conflict, Gone, Kube, KubeError
from tidemill_operator.metrics import FLIP_SECONDS, FLIPS, GRANT_SECONDS
from tidemill_operator.names import MANAGER, gpucell
from tidemill_operator.observed import Reading

RENEW_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0
ORDER_SECONDS = 5.0
REMEMBERED_FLIPS = 100

_log = Log(__name__)


class Follower:
    """`reading` is what the job's plans know of the conductor. `changed` is called when it is worth another pass."""

    def __init__(
        self,
        key: Key,
        url: str,
        kube: Kube,
        caches: Caches,
        session: aiohttp.ClientSession,
        credential: Credential,
        leads: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self.reading = Reading(since=time.time())
        self.url = url
        self._key = key
        self._kube = kube
        self._caches = caches
        self._session = session
        self._credential = credential
        self._conductor = ConductorClient(url, credential, session)
        self._leads = leads
        self._changed = changed
        self._term = 0
        self._renewed = float("-inf")
        self._settings: SettingsChange | None = None
        self._delivered: dict[tuple[str, int], float] = {}
        self._carrying: dict[str, asyncio.Task[None]] = {}
        self._to_carry: dict[str, tuple[Carry, Grant | None, float | None]] = {}
        self._flips: tuple[Flip, ...] = ()

    async def run(self) -> None:
        """Until cancelled, or the job has ended."""
        pause, after = FIRST_PAUSE_SECONDS, -1
        try:
            while self._leads():
                try:
                    await self._hold_term()
                    tide = await self._conductor.tide(after, wait_seconds=max(0.1, RENEW_SECONDS - (time.monotonic() - self._renewed)))
                    after = tide.sequence
                    self._note(tide)
                    await self._act(tide)
                    pause = FIRST_PAUSE_SECONDS
                except (WireError, KubeError) as trouble:
                    self._stumble(trouble)
                    after = -1  # a conductor that began anew counts from 0 again
                    await asyncio.sleep(pause)
                    pause = min(LONGEST_PAUSE_SECONDS, pause * 2)
        finally:
            for task in self._carrying.values():
                task.cancel()

    async def history(self) -> bytes:
        """All of the job's events. Raises WireError."""
        lines = b""
        while piece := await self._conductor.events(len(lines), wait_seconds=0.0):
            lines += piece
        return lines

    def _note(self, tide: Tide) -> None:
        """Flips are gathered here, from each reading: a pass comes less often, and would miss the first of two flips of a cell."""
        known = {(flip.cell, flip.epoch) for flip in self._flips}
        told = [c.state.last_flip for c in tide.cells if c.state and c.state.last_flip]
        new = tuple(flip for flip in told if (flip.cell, flip.epoch) not in known)
        if self.reading.tide is not None:  # the first reading's flips were counted by the operator before
            for flip in new:
                FLIPS.of(flip.to.value).inc()
                FLIP_SECONDS.of(flip.to.value).observe(flip.seconds)
        self._flips = (*self._flips, *new)[-REMEMBERED_FLIPS:]
        self.reading = Reading(tide, time.time(), "", self.reading.suspended and tide.suspended, self._flips, self.reading.since)
        self._changed()

    def _stumble(self, trouble: Exception) -> None:
        if isinstance(trouble, Refused):
            self._term = 0
        self._renewed = float("-inf")
        if self.reading.error != str(trouble):
            self.reading = replace(self.reading, error=str(trouble))
            _log.warning("conductor cannot be followed", job="/".join(self._key), reason=str(trouble))
        self._changed()

    async def _hold_term(self) -> None:
        """The holder's name is the same for every replica: a new leader takes the next term at once, and the old one's is void."""
        if time.monotonic() - self._renewed < RENEW_SECONDS * 0.9:
            return
        before = time.monotonic()
        term = await self._conductor.authority(Authority(MANAGER, self._term))
        if term.term != self._term:
            self._settings = None
        self._term, self._renewed = term.term, before

    async def _act(self, tide: Tide) -> None:
        job = self._caches.job(self._key)
        if job is None or job.model is None:
            return
        cells = {cell.name: cell for cell in self._caches.cells(self._key)}
        actions = plan_flip(
            tide,
            cells,
            self._term,
            suspend=job.model.spec.suspend,
            async_training_cells=job.model.spec.schedule.async_training_cells,
            delivered=self._delivered,
            now=time.monotonic(),
        )
        read = time.monotonic()
        for action in actions:
            await self._do(action, tide, read)
        if tide.term == self._term and tide.phase not in (JobPhase.SUCCEEDED, JobPhase.FAILED):
            await self._change_settings(job.model)

    async def _do(self, action: FlipAction, tide: Tide, read: float) -> None:
        match action:
            case Carry():
                self._start_carrying(action, None)
            case Constrain(cell, pin, cordon):
                try:
                    await self._conductor.constrain(cell, Constraints(self._term, pin, cordon))
                except Rejected as wrong:  # no reason to keep the others from their flips
                    _log.warning("constraints are not taken", job="/".join(self._key), cell=cell, reason=str(wrong))
            case Hold(resume):
                await self._conductor.suspend(Suspend(self._term, resume))
                self.reading = replace(self.reading, suspended=not resume)
                self._changed()
            case Ask(cell, role):
                try:
                    grant = await self._conductor.request_grant(GrantRequest(cell, role, self._term, tide.sequence))
                except Refused as refusal:  # the counters have moved on
                    _log.info("grant refused", job="/".join(self._key), cell=cell, reason=str(refusal))
                    return
                url = next((c.state.url for c in tide.cells if c.cell == cell and c.state), "")
                self._start_carrying(Carry(cell, grant.role, grant.epoch, True, url), grant, read)

    def _start_carrying(self, carry: Carry, grant: Grant | None, read: float | None = None) -> None:
        """In a task for each cell, so that an agent that does not answer keeps no other cell from its flip. The newest epoch is next."""
        waiting = self._to_carry.get(carry.cell)
        if waiting is None or (carry.epoch, grant is not None) >= (waiting[0].epoch, waiting[1] is not None):
            self._to_carry[carry.cell] = (carry, grant, read)
        busy = self._carrying.get(carry.cell)
        if busy is None or busy.done():
            self._carrying[carry.cell] = asyncio.create_task(self._carry_all(carry.cell))

    async def _carry_all(self, cell: str) -> None:
        while cell in self._to_carry:
            await self._carry(*self._to_carry.pop(cell))

    async def _carry(self, carry: Carry, grant: Grant | None, read: float | None) -> None:
        try:
            if carry.write and self._written(carry.cell) < carry.epoch:
                await self._write(carry)
            if carry.url and self._leads():
                await self._deliver(carry, grant)
                if read is not None:
                    GRANT_SECONDS.observe(time.monotonic() - read)
        except (WireError, KubeError) as trouble:  # the next reading brings it up again
            _log.warning("flip is not carried on", job="/".join(self._key), cell=carry.cell, epoch=carry.epoch, reason=str(trouble))

    def _written(self, cell: str) -> int:
        return next((c.spec.epoch for c in self._caches.cells(self._key) if c.name == cell), 0)

    async def _write(self, carry: Carry) -> None:
        """GPUCell.spec, checked against the version that was read: nobody's newer epoch is overwritten."""
        namespace, job = self._key
        name = gpucell(job, carry.cell)
        version = next((c.resource_version for c in self._caches.cells(self._key) if c.name == carry.cell), "")
        for _ in range(3):
            if not self._leads():
                return
            patch = {"metadata": {"resourceVersion": version}, "spec": {"role": carry.role.value, "epoch": carry.epoch}}
            try:
                self._caches.absorb(await self._kube.merge("GPUCell", namespace, name, patch))
                return
            except Gone:
                return
            except Conflict:
                fresh = await self._kube.get("GPUCell", namespace, name)
                self._caches.absorb(fresh)
                if fresh["spec"].get("epoch", 0) >= carry.epoch:
                    return
                version = fresh["metadata"]["resourceVersion"]

    async def _deliver(self, carry: Carry, grant: Grant | None) -> None:
        if grant is None:
            grant = next((g for g in await self._conductor.grants() if g.cell == carry.cell), None)
        if grant is None or grant.epoch != carry.epoch:
            return  # there is a newer one, which the next reading has
        if time.monotonic() - self._delivered.get((carry.cell, carry.epoch), float("-inf")) < REPEAT_SECONDS:
            return  # it was delivered while this waited
        self._delivered = {k: at for k, at in self._delivered.items() if k[0] != carry.cell} | {(carry.cell, carry.epoch): time.monotonic()}
        agent = CellClient(carry.url, self._credential, self._session)
        order = RoleOrder(grant.role, grant.epoch, grant.destinations)
        try:
            await asyncio.wait_for(agent.put_role(order), ORDER_SECONDS)
        except Refused as newer:
            _log.info("agent has a newer epoch", cell=carry.cell, reason=str(newer))
        except TimeoutError as cause:
            raise Unreachable(f"{carry.url}: no answer within {ORDER_SECONDS:g} s") from cause

    async def _change_settings(self, job: RLJob) -> None:
        change = SettingsChange(
            term=self._term,
            steps=job.spec.schedule.steps,
            standalone_replicas=job.spec.cells.standalone.replicas,
            call_seconds=job.spec.timeouts.call_seconds,
            execution_seconds=job.spec.timeouts.execution_seconds,
            group_seconds=job.spec.timeouts.group_seconds,
            drop_at_group_timeout=job.spec.timeouts.on_group_timeout.value == "Drop",
            extensions=tuple(sorted(job.spec.schedule.extensions)),
        )
        if change == self._settings:
            return
        try:
            await self._conductor.change_settings(change)
        except Rejected as wrong:
            _log.warning("settings are not taken", job="/".join(self._key), reason=str(wrong))
        self._settings = change

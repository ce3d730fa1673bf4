"""The conductor itself: the store, what is only in memory, and the loop that calls the decisions and does what they say."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from tidemill.telemetry.events import JobStarted, TideRead
from tidemill.telemetry.logs import Log
from tidemill.wire.cell import CellState
from tidemill.wire.conductor import Applied, Grant, LeaseReply, LeaseRequest, Published, SettingsChange, Suspended, Tide, Work
from tidemill.wire.gateway import GatewayClient
from tidemill.wire.http import Board, Refused, WireError
from tidemill.wire.trust import Credential
from tidemill_rollout.conductor import (
    bursts,
    cells,
    changes,
    conditions,
    controller,
    events,
    executions,
    groups,
    job,
    progress,
    room,
    steps,
    tide,
    work,
)
from tidemill_rollout.conductor.cells import Cell, Reports
from tidemill_rollout.conductor.conditions import Conditions
from tidemill_rollout.conductor.controller import Holder
from tidemill_rollout.conductor.executions import Execution
from tidemill_rollout.conductor.life import Lives
from tidemill_rollout.conductor.orders import Orders
from tidemill_rollout.conductor.sandboxes import Remote, Sandboxes
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database, Store, Unwritable

T = TypeVar("T")
_log = Log(__name__)

TICK_SECONDS = 0.5
"""How often time alone is looked at: leases, silent agents, group time-outs."""

PAUSE_SECONDS = 0.01
"""Between two passes, so that changes that come close together cost one."""

CALM_SECONDS = 3.0
"""After a failed write, as long without another before the disk counts as good: small writes succeed on a nearly full disk, large ones do not."""

GATEWAY_POLL_SECONDS = 2.0
GATEWAY_PATIENCE_SECONDS = 20.0
"""A gateway that restarts is away for a few seconds; after this long it is a condition."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job's conductor lives, and whom it calls."""

    workdir: Path
    tasks: tuple[str, ...]  # names
    held_out: tuple[str, ...]
    cores_shared: bool
    credential: Credential | str


class Conductor:
    def __init__(
        self,
        settings: Settings,
        place: Place,
        store: Store,
        sandboxes: Sandboxes,
        gateway: GatewayClient,
        session: aiohttp.ClientSession,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.place = place
        self.store = store
        self.clock = clock
        self.conditions = Conditions()
        self.reports = Reports(since=clock())
        self.holder = Holder(expires=clock() + controller.TERM_SECONDS)
        self.board = Board()  # moves with what `tide` says
        self.board.sequence = int(clock() * 1000)  # larger than any of the process before, so that its readers do not wait for it in vain
        self.work = Board()  # moves with every change of the store
        self.last_pass = clock()
        self.tide: Tide | None = None
        self.known_cells: tuple[Cell, ...] = ()  # as of that tide
        self._told: TideRead | None = None
        self._changed = asyncio.Event()
        self._gateway = gateway
        self._sandboxes = sandboxes
        self._remote = sandboxes if isinstance(sandboxes, Remote) else None
        self._lives = Lives(settings, self, gateway, sandboxes, place.workdir / "trajectories", clock)
        self._living: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._orders = Orders(place.credential, session, self._spawn)
        self._outbox = events.Outbox(store, place.workdir / "metrics.jsonl")
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()
        self._unwritable = -CALM_SECONDS  # when a write failed last
        self._paused = False  # as of the last pass that was stored
        self.suspended = False  # not stored: the next start of this process resumes
        store.on_change = self._changed.set

    async def start(self, retry_failed: bool) -> None:
        """Open the store and go on. What fails from now on ends the task group, and so the process: its next start goes on from the store."""
        resumed = await self.commit(lambda db: self._open(db, retry_failed))
        _log.info("job opened", resumed=resumed)
        for execution in await self.commit(lambda db: executions.in_state(db, "Evaluating")):
            self._give_life(execution)
        await self._show()
        self._spawn(self._keep_going())
        self._spawn(self._watch_gateway())

    async def stop(self) -> None:
        """Kill the harnesses; the store keeps their executions as running, and the next start queues them again."""
        for task in tuple(self._running):
            task.cancel()
        await self._sandboxes.stop_all()

    def change(self, what: Callable[[Database], T]) -> T:
        """One transaction. Raises `Unwritable`, which also becomes a condition, and whatever `what` refuses."""
        try:
            with self.store.transaction() as db:
                return what(db)
        except Unwritable as trouble:
            self._note_unwritable(trouble)
            raise

    async def commit(self, change: Callable[[Database], T]) -> T:
        """One transaction, repeated until the disk takes it."""
        while True:
            try:
                return self.change(change)
            except Unwritable:
                await asyncio.sleep(TICK_SECONDS)

    async def written(self, write: Callable[[], object]) -> None:
        """A file, repeated until the disk takes it."""
        while True:
            try:
                write()
            except OSError as trouble:
                self._note_unwritable(Unwritable(f"{self.place.workdir}: {trouble.strerror}; free space on its disk, the job goes on by itself"))
                await asyncio.sleep(TICK_SECONDS)
            else:
                return

    def hindered(self, since: float, by: tuple[str, ...] = conditions.PAUSING) -> bool:
        self._note_surroundings()
        return self.conditions.held(by, since)

    async def room(self) -> None:
        while self.hindered(self.clock(), conditions.FULL_DISK):
            await asyncio.sleep(TICK_SECONDS)

    def cells(self, db: Database) -> tuple[Cell, ...]:
        return cells.read(db, self.reports, self.clock())

    def report(self, state: CellState) -> Grant:
        """An agent tells its state and learns its grant."""

        cells.current_grant(self.store.db, state.cell)
        self.reports.note(state, self.clock())  # also when nothing can be written: a full disk makes no agent silent
        self._changed.set()

        def note(db: Database) -> Grant:
            cells.note_report(db, state, self.clock())
            return cells.current_grant(db, state.cell)

        return self.change(note)

    async def next_work(self, request: LeaseRequest, alive: Callable[[], bool]) -> LeaseReply:
        """Long poll. `alive` is whether the asker still listens: nothing is leased to a trainer that has gone."""
        self.change(lambda db: work.admit(db, request))
        loop = asyncio.get_running_loop()
        until = loop.time() + min(request.wait_seconds, 60.0)
        closed_seconds = 0.0
        while True:
            seen = self.work.sequence
            reply = (
                None if self.suspended else self.change(lambda db: work.next_work(db, request, cells.current_grant(db, request.cell), self.clock()))
            )
            left = until - loop.time()
            if reply is None and left <= 0:
                reply = LeaseReply(Work.WAIT, step=bursts.committed_steps(self.store.db))
            if reply is not None:
                return msgspec.structs.replace(reply, closed_seconds=closed_seconds)
            closed, began = steps.closed(self.store.db), loop.time()
            await self.work.newer_than(seen, left)
            closed_seconds += loop.time() - began if closed else 0.0
            if not alive():
                raise Refused(f"cell {request.cell}: the trainer hung up while it waited")

    def applied(self, step: int, told: Applied) -> None:
        """A step is committed; a copy of the store goes beside its weights, so that the checkpoint is whole."""
        if self.change(lambda db: steps.commit(db, step, told, self.clock())):
            _log.info("step committed", step=step + 1, checkpoint=told.checkpoint)
            self._spawn(self._copy_store(told.checkpoint))

    def published(self, told: Published) -> None:
        def publish(db: Database) -> bool:
            if not bursts.publish(db, told, self.clock()):
                return False
            controller.end_burst(db, self.settings, self.cells(db), self.clock())
            return True

        if self.change(publish):
            _log.info("weights published", version=told.version, step=told.step)

    def change_settings(self, told: SettingsChange) -> None:
        self._use(self.change(lambda db: changes.change(db, self.settings, told, self.clock())))

    async def suspend(self) -> Suspended:
        """Nothing new begins, harnesses are ended, and what they did not finish is queued again. Then nothing of the job is in memory alone."""
        self.suspended = True
        living = list(self._living.items())
        self._living.clear()
        for _, (_, task) in living:
            task.cancel()
        await asyncio.gather(*(task for _, (_, task) in living), return_exceptions=True)
        await asyncio.gather(*(self._lives.close(name, attempt) for name, (attempt, _) in living))
        await self.commit(executions.requeue_all_running)
        self._outbox.flush()
        await self._show()
        _log.info("suspended", step=bursts.committed_steps(self.store.db), harnesses_ended=len(living))
        return self.standing()

    def standing(self) -> Suspended:
        db = self.store.db
        version = bursts.published(db)
        return Suspended(bursts.committed_steps(db), version.version if version else -1, len(executions.in_state(db, "Pending")))

    async def resume(self) -> None:
        if self.suspended:
            self.suspended = False
            await self.commit(groups.begin_time_anew)
            for execution in executions.in_state(self.store.db, "Evaluating"):
                self._give_life(execution)
            _log.info("resumed")
        self._changed.set()

    async def events(self, after: int, wait_seconds: float) -> bytes:
        """Raises `Rejected` when there are not so many."""
        until = asyncio.get_running_loop().time() + wait_seconds
        while True:
            seen = self.work.sequence
            told = self._outbox.read(after)
            left = until - asyncio.get_running_loop().time()
            if told or left <= 0:
                return told
            await self.work.newer_than(seen, left)

    def told(self, after: int) -> bytes:
        """The job's events from byte `after` on, a part of them when there are many."""
        return self._outbox.read(after)

    @property
    def living(self) -> frozenset[str]:
        """Executions that somebody runs or evaluates."""
        return frozenset(self._living)

    def controller(self, db: Database) -> str:
        return controller.held(db, self.holder, self.clock()) or "conductor"

    def _open(self, db: Database, retry_failed: bool) -> bool:
        now = self.clock()
        self._use(changes.apply(self.settings, changes.stored(db)))
        resumed = job.open_job(db, self.settings, now, retry_failed)
        conditions.begin_anew(db, now)
        known = cells.read(db, self.reports, now)
        started = JobStarted(
            time=now,
            job=self.settings.job,
            mode=self.settings.mode,
            steps=self.settings.plan.steps,
            cells=tuple(c.name for c in known),
            capacities=tuple(c.capacity for c in known),
            cores_shared=self.place.cores_shared,
            resumed=resumed,
        )
        events.say(db, started)
        return resumed

    def _use(self, settings: Settings) -> None:
        """What lives already keeps the time it was given."""
        self.settings, self._lives = settings, replace(self._lives, settings=settings)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _keep_going(self) -> None:
        while True:
            self._changed.clear()
            now = self.clock()
            try:
                self._advance(now)
            except Unwritable as trouble:
                self._note_unwritable(trouble)
                self._changed.clear()
            await self._show()
            self.last_pass = now
            await self.work.bump()
            await asyncio.sleep(PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), TICK_SECONDS)

    def _advance(self, now: float) -> None:
        """One pass: decide and store, then do. Raises `Unwritable`; then nothing was done either."""
        self._note_surroundings()
        if self.conditions.holds(conditions.STORE):
            self.change(job.probe)
            if now - self._unwritable >= CALM_SECONDS:
                self.conditions.state(conditions.STORE, "", now)
        with self.store.transaction() as db:
            known = self.cells(db)
            self.conditions.note_cells(known, now)
            paused = self.conditions.pausing
            probe = not self.suspended and self.conditions.probe(now)
            if probe or (self._paused and not paused):
                groups.begin_time_anew(db)
            started = (
                ()
                if self.suspended
                else progress.advance(
                    db,
                    self.settings,
                    known,
                    self.place.tasks,
                    self.place.held_out,
                    decides_flips=self.controller(db) == "conductor",
                    paused=paused,
                    now=now,
                    probe=probe,
                )
            )
            known = self.cells(db)
            level = tide.event(db, known, now=0.0)
            if level != self._told:
                events.say(db, msgspec.structs.replace(level, time=now))
            untold = tuple(self.conditions.untold)
            for condition in untold:
                conditions.tell(db, condition)
        self._told, self._paused = level, paused
        del self.conditions.untold[: len(untold)]
        for execution in started:
            self._give_life(execution)
        self._end_the_dead()
        self._orders.push(known)
        self._outbox.flush()

    async def _show(self) -> None:
        """What `GET /v1/tide` answers, also while nothing can be written."""
        db = self.store.db
        self.known_cells = self.cells(db)
        reading = tide.for_all(db, self.settings, self.known_cells, self.conditions, self.controller(db), self.board.sequence, self.clock())
        reading = msgspec.structs.replace(reading, suspended=self.suspended)
        if reading != self.tide:
            self.tide = msgspec.structs.replace(reading, sequence=self.board.sequence + 1)
            await self.board.bump()

    def _note_unwritable(self, trouble: Unwritable) -> None:
        self._unwritable = self.clock()
        if not self.conditions.holds(conditions.STORE):  # several files may be in trouble: the first is told
            self.conditions.state(conditions.STORE, str(trouble), self._unwritable)
        self._changed.set()

    def _note_surroundings(self) -> None:
        self.conditions.state(conditions.DISK, room.shortage(self.place.workdir), self.clock())
        if self._remote is not None:
            self.conditions.state(conditions.SANDBOXES, self._remote.trouble, self.clock())

    def _give_life(self, execution: Execution) -> None:
        async def live() -> None:
            await self._lives.live(execution)
            if self._living.get(execution.id, (0, None))[0] == execution.attempt:
                del self._living[execution.id]

        self._living[execution.id] = (execution.attempt, self._spawn(live()))

    def _end_the_dead(self) -> None:
        """Lives whose execution was dropped under them, and all of them when the job has ended."""
        over = job.phase(self.store.db)[0] != "Running"
        for name, (attempt, task) in list(self._living.items()):
            execution = executions.one(self.store.db, name)
            if over or execution is None or execution.state in ("Scored", "Dropped"):
                del self._living[name]
                task.cancel()
                self._spawn(self._lives.end(name, attempt))

    async def _watch_gateway(self) -> None:
        """Its journal may be full, or it may be away for too long: then nothing new is started."""
        heard = self.clock()
        while True:
            try:
                text = (await self._gateway.state()).condition
                heard = self.clock()
            except WireError as trouble:
                text = f"it has not answered for over {GATEWAY_PATIENCE_SECONDS:g} s: {trouble}"
                if self.clock() - heard < GATEWAY_PATIENCE_SECONDS:
                    text = ""
            self.conditions.state(conditions.GATEWAY, text, self.clock())
            self._changed.set()
            await asyncio.sleep(GATEWAY_POLL_SECONDS)

    async def _copy_store(self, checkpoint: str) -> None:
        try:
            await asyncio.to_thread(self.store.copy_beside, self.place.workdir / "checkpoints", checkpoint)
        except Exception as trouble:
            _log.warning("no copy of the store beside the checkpoint", checkpoint=checkpoint, reason=str(trouble))

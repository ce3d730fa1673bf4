"""A conductor as far as a trainer sees it, over real HTTP: hands out given micro-steps, counts each once, records what happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from aiohttp import web

from tidemill.trajectory.sequence import Sequence
from tidemill.wire.conductor import Applied, Contribution, LeaseIds, LeaseReply, LeaseRequest, MicroStep, Published, TrainingState, Work
from tidemill.wire.http import Refused, Unreachable, application, read, reply, serve
from tidemill.wire.trainer import Nothing

CORE = "cell-0"


@dataclass
class Entry:
    """One micro-step."""

    sequences: tuple[Sequence, ...]
    wanted_by: str  # only this cell gets it; "" for any
    state: str = "queued"  # leased, counted
    lease: str = ""
    cell: str = ""


@dataclass
class Conductor:
    steps: list[list[Entry]]
    steps_per_burst: int
    committed: int = 0
    checkpoint: str = ""
    published: Published | None = None
    publications: list[Published] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    contributions: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)  # step, cell, leases
    renewals: int = 0
    before_commit: Callable[[int], None] = lambda step: None  # may raise Unreachable: then the step stays open
    before_apply: Callable[[int], None] = lambda step: None
    incarnations: dict[str, str] = field(default_factory=dict)
    url: str = ""
    _leases: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self, token: str) -> web.AppRunner:
        app = application(token)
        app.add_routes(
            [
                web.get("/v1/training", self._training),
                web.post("/v1/leases", self._lease),
                web.post("/v1/leases/return", self._return),
                web.post("/v1/leases/renew", self._renew),
                web.post("/v1/steps/{step}/contributions", self._contribute),
                web.post("/v1/steps/{step}/applied", self._applied),
                web.post("/v1/publications", self._published),
            ]
        )
        runner = await serve(app, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def until(self, holds: Callable[[Conductor], bool], what: str, seconds: float = 60.0) -> None:
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: holds(self)), seconds)
            except TimeoutError as cause:
                raise AssertionError(f"not within {seconds:g} s: {what}; committed {self.committed}, counted {self.contributions}") from cause

    async def give_up_on(self, cell: str) -> None:
        """What the expiry of its leases does."""
        async with self._changed:
            self._free(cell)
            self._changed.notify_all()

    async def let_anyone(self) -> None:
        async with self._changed:
            for entries in self.steps:
                for entry in entries:
                    entry.wanted_by = ""
            self._changed.notify_all()

    def leased_to(self, cell: str) -> list[Entry]:
        return [e for entries in self.steps for e in entries if e.state == "leased" and e.cell == cell]

    def _free(self, cell: str) -> None:
        for entry in self.leased_to(cell):
            entry.state, entry.lease = "queued", ""

    async def _training(self, request: web.Request) -> web.Response:
        there = self.published
        state = TrainingState(
            self.committed, self.checkpoint, there.version if there else 0, there.step if there else 0, there.digest if there else ""
        )
        return reply(state)

    async def _lease(self, request: web.Request) -> web.Response:
        asked = await read(request, LeaseRequest)
        async with self._changed:
            if self.incarnations.get(asked.cell) != asked.incarnation:
                self.incarnations[asked.cell] = asked.incarnation
                self._free(asked.cell)
                if asked.cell == CORE and self.committed < len(self.steps):  # the sum is lost with it
                    for entry in self.steps[self.committed]:
                        entry.state, entry.lease = "queued", ""
            if asked.cell == CORE and asked.checkpoint_step != self.committed:
                raise Refused(f"the core holds step {asked.checkpoint_step}, committed is {self.committed}")
            for entry in self.leased_to(asked.cell):
                if asked.holding is not None and entry.lease not in asked.holding:  # it got lost on the way to this trainer
                    entry.state, entry.lease = "queued", ""
            if asked.wait_seconds and self._work(asked) is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait_for(lambda: self._work(asked) is not None), asked.wait_seconds)
            work = self._work(asked)
            if request.transport is None or request.transport.is_closing():
                work = None  # nobody listens any more
            return reply(LeaseReply(Work.WAIT) if work is None else self._give(asked, work))

    def _work(self, asked: LeaseRequest) -> Work | None:
        if asked.cell == CORE and (self.published is None or (self._burst_is_over() and self.published.step < self.committed)):
            return Work.PUBLISH
        if self.committed == len(self.steps) or asked.epoch == 0:  # nothing was ever granted under epoch 0
            return None
        if self._next(asked.cell):
            return Work.COMPUTE
        if asked.cell == CORE and all(e.state == "counted" for e in self.steps[self.committed]):
            return Work.APPLY
        return None

    def _give(self, asked: LeaseRequest, work: Work) -> LeaseReply:
        match work:
            case Work.PUBLISH:
                return LeaseReply(work, version=0 if self.published is None else self.published.version + 1)
            case Work.APPLY:
                self.before_apply(self.committed)
                return LeaseReply(work, step=self.committed, count=len(self.steps[self.committed]))
        index, entry = self._next(asked.cell) or (0, self.steps[0][0])
        self._leases += 1
        entry.state, entry.lease, entry.cell = "leased", f"L{self._leases}", asked.cell
        self._changed.notify_all()
        micro_step = MicroStep(f"s{self.committed}-{index}", entry.lease, self.committed, index, 0, entry.sequences)
        return LeaseReply(work, step=self.committed, micro_steps=(micro_step,), lease_seconds=1.5)

    def _next(self, cell: str) -> tuple[int, Entry] | None:
        waiting = ((i, e) for i, e in enumerate(self.steps[self.committed]) if e.state == "queued" and e.wanted_by in ("", cell))
        return next(waiting, None)

    def _burst_is_over(self) -> bool:
        return self.committed % self.steps_per_burst == 0 or self.committed == len(self.steps)

    async def _return(self, request: web.Request) -> web.Response:
        ids = await read(request, LeaseIds)
        async with self._changed:
            for entry in self.leased_to(ids.cell):
                if entry.lease in ids.leases:
                    entry.state, entry.lease = "queued", ""
            self._changed.notify_all()
        return reply(Nothing())

    async def _renew(self, request: web.Request) -> web.Response:
        ids = await read(request, LeaseIds)
        lost = set(ids.leases) - {e.lease for e in self.leased_to(ids.cell)}
        if lost:
            raise Refused(f"leases {lost} have ended")
        async with self._changed:
            self.renewals += 1
            self._changed.notify_all()
        return reply(Nothing())

    async def _contribute(self, request: web.Request) -> web.Response:
        step = int(request.match_info["step"])
        told = await read(request, Contribution)
        async with self._changed:
            found = [e for e in self.steps[step] if e.lease in told.leases and e.cell == told.cell]
            if step != self.committed or len(found) != len(told.leases):
                raise Refused(f"step {step}: leases {told.leases} of {told.cell} have ended")
            if all(e.state == "counted" for e in found):
                return reply(Nothing())
            assert all(e.state == "leased" for e in found)
            for entry in found:
                entry.state = "counted"
            self.contributions.append((step, told.cell, told.leases))
            self._changed.notify_all()
        return reply(Nothing())

    async def _applied(self, request: web.Request) -> web.Response:
        step = int(request.match_info["step"])
        told = await read(request, Applied)
        async with self._changed:
            self._changed.notify_all()
            self.before_commit(step)
            if step == self.committed:
                self.committed, self.checkpoint = step + 1, told.checkpoint
                self.applied.append(told)
        return reply(Nothing())

    async def _published(self, request: web.Request) -> web.Response:
        told = await read(request, Published)
        async with self._changed:
            if told != self.published:
                self.published = told
                self.publications.append(told)
            self._changed.notify_all()
        return reply(Nothing())


def entries(parts: Many[tuple[Sequence, ...]], wanted_by: Callable[[int], str] = lambda index: "") -> list[Entry]:
    return [Entry(part, wanted_by(index)) for index, part in enumerate(parts)]


def unreachable(reason: str) -> None:
    raise Unreachable(reason)

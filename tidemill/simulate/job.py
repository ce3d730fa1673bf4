"""One job, simulated: the conductor's sequence of decisions, taken by the functions of `tidemill.policy`, over a clock of events."""

from __future__ import annotations

import math
from collections import Counter, deque
from heapq import heappop, heappush

from tidemill.policy import burst as boundary
from tidemill.policy import extensions, refill, step
from tidemill.policy.extensions import Extension, Rules
from tidemill.policy.staleness import staleness, within
from tidemill.policy.step import OpenStep
from tidemill.policy.tide import CellView, Fleet, Tide
from tidemill.simulate.costs import Costs
from tidemill.simulate.pool import Execution, Pool
from tidemill.simulate.prospects import Prospects
from tidemill.simulate.recorder import Recorder, Silent
from tidemill.simulate.result import Result, ended
from tidemill.simulate.setup import Setup
from tidemill.simulate.state import Burst, Cell, Group
from tidemill.simulate.traces import Trace
from tidemill.simulate.trainers import Trainers

CORE = 0
LEAST_SCORED = 2
"""Executions that make a group: scores are compared with each other."""


class Stuck(Exception):
    """Nothing can ever happen any more although steps are left: a rule is wrong."""


class Job:
    def __init__(self, setup: Setup, trace: Trace, costs: Costs, recorder: Recorder | None = None) -> None:
        self.setup = setup
        self.trace = trace
        self.costs = costs
        self.rules = Rules(setup.mode, setup.async_training_cells, setup.extensions)
        self.recorder: Recorder = recorder or Silent()
        self.now = 0.0
        self.cells = [Cell(f"cell-{n}") for n in range(setup.cells)]
        self.pool = Pool(costs.progress)
        self.trainers = Trainers()
        self.prospects = Prospects(setup, costs) if self.rules.extended else None
        self.dispatched = self.terminated = self.groups_dispatched = self.groups_dropped = 0
        self.pending: deque[Execution] = deque()
        self.open: dict[int, Group] = {}  # dispatched, not ready
        self.ready: list[Group] = []  # in the order in which they became so
        self.taken: list[Group] = []  # by the open step
        self.burst: Burst | None = None
        self.bursts = 0
        self.version = 0
        self.version_step = 0
        self.committed = 0
        self.closed = False
        self.applying = False  # the core updates or publishes
        self.flips = self.training_cells_max = 0
        self.stale: Counter[tuple[int, int]] = Counter()  # publications, updates -> groups
        self.passes = 0
        self.core_seconds = 0.0  # in updates and publications
        self._trained_short = 0  # places of committed steps that stayed empty
        self._assembled = False  # nothing has changed since the open step was looked at
        self._changes = 0  # of cells
        self._index = {c.name: n for n, c in enumerate(self.cells)}
        self._handlers = {
            "settled": self._settled,
            "computed": self._computed,
            "applied": self._applied,
            "published": self._published,
            "group_over": self._group_over,
        }
        self._events: list[tuple[float, int, str, int, int]] = []
        self._number = 0
        self._views = Fleet(CellView(c.name, setup.capacity, in_rollout=True, settled=False) for c in self.cells)
        self._training_cells = 0
        self._unchanged: tuple[int, ...] = ()  # what the last decision about flips saw

    def run(self) -> Result:
        self.pool.set_capacity(self.setup.standalone * self.setup.capacity)
        for index, cell in enumerate(self.cells):
            cell.settles = self.serving_at(index)
            self._at(cell.settles, "settled", index, cell.epoch)
        self.recorder.started(self)
        self._advance()
        while self.committed < self.setup.plan.steps or self.applying:
            at = min(self._events[0][0] if self._events else math.inf, self.pool.next_end())
            if at == math.inf:
                raise Stuck(f"nothing happens after {self.now:g} s: {self.committed} of {self.setup.plan.steps} steps are committed")
            self.pool.advance(at)
            self.now = at
            for execution, timed_out in self.pool.ended():
                self._ended(execution, timed_out)
            while self._events and self._events[0][0] <= at:
                _, _, kind, index, epoch = heappop(self._events)
                self._handlers[kind](index, epoch)
            self._advance()
        return ended(self, self.recorder.decisions, self.recorder.events)

    def tide(self, about_to_dispatch: int = 0) -> Tide:
        return Tide(
            dispatched=self.dispatched + about_to_dispatch,
            terminated=self.terminated,
            cells=self._views,
            standalone_capacity=self.setup.standalone * self.setup.capacity,
            ready_groups=len(self.ready),
            groups_due=self._groups_due(),
        )

    def outstanding(self) -> int:
        """Groups dispatched, not trained, not dropped."""
        return self.groups_dispatched - self.groups_dropped - self.committed * self.setup.plan.groups_per_step + self._trained_short

    def backlog_seconds(self) -> float:
        """Training that could be done now, in seconds of one cell."""
        return self.trainers.queued_seconds + sum(map(self.training_seconds, self.ready))

    def training_seconds(self, group: Group) -> float:
        return sum(e.tokens for e in group.executions) / self.costs.train_tokens_per_second

    def served_seconds(self, execution: Execution) -> float:
        """How long it takes when it starts now and is served without waiting."""
        return execution.seconds

    def serving_at(self, cell: int) -> float:
        """When its engine has loaded the first weights."""
        return 0.0

    def update_seconds(self) -> float:
        return self.costs.optimizer_step_seconds

    def publish_seconds(self) -> float:
        return self.costs.publish_seconds

    def flip_seconds(self, cell: int, to_training: bool) -> float:
        return self.costs.flip_to_training_seconds if to_training else self.costs.flip_to_rollout_seconds

    def _advance(self) -> None:
        """What one pass of the conductor does."""
        self.passes += 1
        if self.burst is None and self.committed < self.setup.plan.steps:
            self._begin_burst()
        if self.burst is not None:
            if self.setup.refill:
                self._dispatch()
            self._assemble()
        self._flip()
        self._start()
        self._compute()
        self.pool.settle()
        self.recorder.passed(self)

    def _begin_burst(self) -> None:
        steps = boundary.steps_in_burst(self.setup.plan, self.committed)
        self.bursts += 1
        self.burst = Burst(self.bursts, self.committed, steps, self.version)
        self.closed, self._assembled = False, False
        for group in [*self.ready, *self.open.values()]:
            if not within(self.version, group.version, self.setup.bound):
                self._drop_group(group)
        self._dispatch()

    def _dispatch(self) -> None:
        for _ in range(self._groups_to_dispatch(self._places_left())):
            number = self.groups_dispatched
            recorded = self.trace.group(number)
            executions = tuple(
                Execution(number, place, seconds, tokens)
                for place, (seconds, tokens) in enumerate(zip(recorded.seconds, recorded.tokens, strict=True))
            )
            group = Group(number, self.version, self.version_step, executions, len(executions))
            self.open[number] = group
            self.groups_dispatched += 1
            self.dispatched += len(executions)
            self.pending.extend(executions)
            self._assembled = False
            self.recorder.dispatched(self, group)

    def _groups_to_dispatch(self, places_left: int) -> int:
        plan = self.setup.plan
        if not self.setup.refill:
            return boundary.groups_to_dispatch(plan, self.committed, self.outstanding())
        waiting = len(self.open) + len(self.ready)
        return refill.groups_to_dispatch(plan, self.committed, self.outstanding(), waiting, places_left, self.setup.bound)

    def _places_left(self) -> int:
        burst = self.burst
        if burst is None:
            return 0
        return (burst.first_step + burst.steps - self.committed) * self.setup.plan.groups_per_step - len(self.taken)

    def _groups_due(self) -> int:
        burst = self.burst
        return (burst.first_step + burst.steps - self.committed) * self.setup.plan.groups_per_step if burst else 0

    def _assemble(self) -> None:
        """Give the open step what is ready for it."""
        if self._assembled or self.closed or self.burst is None or self._groups_due() == 0:
            return
        self._assembled = True
        waiting = sorted([*self.ready, *self.open.values()], key=lambda g: g.version)  # of a version those that were ready first
        how = self.setup
        open_step = OpenStep(
            assigned=len(self.taken),
            places_left=self._places_left(),
            version=self.version,
            groups_per_step=how.plan.groups_per_step,
            groups_per_burst=how.groups_per_burst,
            bound=how.bound,
            streaming=how.streaming,
            drop_stale=how.drop_stale,
        )
        chosen, self.closed = step.choose(waiting, open_step)
        for group in chosen:
            self.ready.remove(group)
            self.taken.append(group)
            self.trainers.add(self._micro_steps(group))
            self.stale[staleness(self.version, group.version), self.committed - group.version_step] += 1
            self.recorder.taken(self, group)

    def _micro_steps(self, group: Group) -> list[float]:
        """Seconds of one cell for each."""
        rate, size = self.costs.train_tokens_per_second, self.costs.micro_step_tokens
        parts = []
        for execution in group.executions:
            if execution.tokens > 0:
                number = max(1, round(execution.tokens / size)) if size else 1
                parts += [execution.tokens / rate / number] * number
        return parts

    def _flip(self) -> None:
        seen = (self.dispatched, self.terminated, self._changes, self._groups_due())
        if self.prospects is None:
            if seen == self._unchanged:
                return
            self._unchanged = seen
        outlook = None
        if self.prospects:
            outlook = self.prospects.outlook(self)
            for name in extensions.returning(self.rules, self.tide(), outlook):
                self._grant(self._index[name], to_training=False)
        for name in extensions.leaving(self.rules, self.tide(), outlook):
            self._grant(self._index[name], to_training=True)

    def _grant(self, index: int, to_training: bool) -> None:
        cell = self.cells[index]
        if not to_training:
            cell.training_seconds += self.now - cell.since
            self.trainers.leave(index)
        elif cell.settled:
            self.pool.set_capacity(self.pool.capacity - self.setup.capacity)
        begins = self.now if cell.settled else max(self.now, cell.settles)  # a flip under way ends first
        cell.in_rollout, cell.settled, cell.since = not to_training, False, self.now
        cell.epoch += 1
        cell.settles = begins + self.flip_seconds(index, to_training)
        self.flips += 1
        self.recorder.granted(self, index, to_training)
        self._training_cells += 1 if to_training else -1
        self.training_cells_max = max(self.training_cells_max, self._training_cells)
        self._cell_changed(index)
        self._at(cell.settles, "settled", index, cell.epoch)

    def _settled(self, index: int, epoch: int) -> None:
        cell = self.cells[index]
        if epoch != cell.epoch:
            return
        cell.settled = True
        if cell.in_rollout:
            self.pool.set_capacity(self.pool.capacity + self.setup.capacity)
        else:
            self.trainers.join(index)
        self.recorder.settled(self, index)
        self._cell_changed(index)

    def _start(self) -> None:
        places = self.pool.capacity
        if self.prospects and Extension.OVERSUBSCRIBE in self.rules.extensions:
            places = int(places * self.prospects.peak_load)
        while self.pending and self.pool.running < places:
            execution = self.pending.popleft()
            group = self.open[execution.group]
            if group.started < 0:
                group.started = self.now
                if self.setup.group_seconds < math.inf:
                    self._at(self.now + self.setup.group_seconds, "group_over", group.number, 0)
            deadline = min(self.now + self.setup.execution_seconds, group.started + self.setup.group_seconds)
            execution.seconds = self.served_seconds(execution)
            self.pool.start(execution, deadline)

    def _compute(self) -> None:
        for cell, seconds in self.trainers.lease():
            self._at(self.now + seconds, "computed", cell, 0)
        core = self.cells[CORE]
        if self.closed and not self.applying and self.trainers.done and not core.in_rollout and core.settled:
            seconds = self.update_seconds()
            self.core_seconds += seconds
            self.applying = True
            self._at(self.now + seconds, "applied", CORE, 0)

    def _computed(self, index: int, _: int) -> None:
        self.trainers.finish(index)

    def _applied(self, _: int, __: int) -> None:
        """The step is committed; after a burst's last one its weights are published."""
        self.committed += 1
        self._trained_short += self.setup.plan.groups_per_step - len(self.taken)
        self.recorder.committed(self)
        self.taken = []
        self.closed, self._assembled = False, False
        if self._groups_due():
            self.applying = False
            return
        seconds = self.publish_seconds()
        self.core_seconds += seconds
        self._at(self.now + seconds, "published", CORE, 0)

    def _published(self, _: int, __: int) -> None:
        self.applying = False
        self.version += 1
        self.version_step = self.committed
        self.burst = None
        self.recorder.published(self)
        places = boundary.steps_in_burst(self.setup.plan, self.committed) * self.setup.plan.groups_per_step
        reading = self.tide(about_to_dispatch=self._groups_to_dispatch(places) * self.setup.rollouts_per_group)
        outlook = self.prospects.outlook(self) if self.prospects else None
        staying = extensions.staying(self.rules, reading, self.setup.plan.groups_per_step, outlook)
        for index, cell in enumerate(self.cells):
            if not cell.in_rollout and cell.name not in staying:
                self._grant(index, to_training=False)

    def _ended(self, execution: Execution, timed_out: bool) -> None:
        group = self.open[execution.group]
        over = timed_out and self.now >= group.started + self.setup.group_seconds
        passed = self.now - execution.started
        if timed_out and execution.seconds > 0:
            execution.tokens *= min(1.0, passed / execution.seconds)
        self._final(group, execution, scored=not (over and self.setup.drop_at_group_timeout))
        if self.prospects:
            self.prospects.ended(self.trace.group(group.number).task, passed)

    def _final(self, group: Group, execution: Execution, scored: bool) -> None:
        self.terminated += 1
        group.left -= 1
        group.scored += scored
        if not scored:
            execution.tokens = 0.0
        self.recorder.ended(self, execution, scored)
        if group.left:
            return
        if group.scored < LEAST_SCORED:
            self._drop_group(group)
            return
        del self.open[group.number]
        group.ready = True
        self.ready.append(group)
        self._assembled = False

    def _group_over(self, number: int, _: int) -> None:
        """Executions that still wait for a place although their group's time is over are dropped."""
        group = self.open.get(number)
        if group is None:
            return
        for execution in [e for e in self.pending if e.group == number]:
            self.pending.remove(execution)
            self._final(group, execution, scored=False)

    def _drop_group(self, group: Group) -> None:
        for execution in group.executions:
            if execution in self.pending:
                self.pending.remove(execution)
                self.terminated += 1
            elif execution.started >= 0 and not execution.gone:
                self.pool.drop(execution)
                self.terminated += 1
        self.open.pop(group.number, None)
        if group in self.ready:
            self.ready.remove(group)
        self.groups_dropped += 1
        self._assembled = False

    def _cell_changed(self, index: int) -> None:
        self._changes += 1
        cell, views = self.cells[index], list(self._views)
        views[index] = CellView(cell.name, self.setup.capacity, cell.in_rollout, cell.settled)
        self._views = Fleet(views)

    def _at(self, time: float, kind: str, index: int, epoch: int) -> None:
        self._number += 1
        heappush(self._events, (time, self._number, kind, index, epoch))

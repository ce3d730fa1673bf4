"""What is kept of a simulation: nothing, or every decision and the events that a real job's conductor would have written."""

from __future__ import annotations

from typing import Protocol

from tidemill.simulate.pool import Execution
from tidemill.simulate.result import Decision
from tidemill.simulate.state import Group
from tidemill.simulate.view import View
from tidemill.telemetry.events import (
    AnyEvent,
    ExecutionEnded,
    FlipEnded,
    JobEnded,
    JobStarted,
    RoleAcknowledged,
    StepCommitted,
    TideRead,
    VersionPublished,
)
from tidemill.wire.cell import Role


class Recorder(Protocol):
    @property
    def decisions(self) -> tuple[Decision, ...]: ...

    @property
    def events(self) -> tuple[AnyEvent, ...]: ...

    def started(self, job: View) -> None: ...

    def dispatched(self, job: View, group: Group) -> None: ...

    def ended(self, job: View, execution: Execution, scored: bool) -> None: ...

    def taken(self, job: View, group: Group) -> None: ...

    def granted(self, job: View, cell: int, to_training: bool) -> None: ...

    def settled(self, job: View, cell: int) -> None: ...

    def committed(self, job: View) -> None: ...

    def published(self, job: View) -> None: ...

    def passed(self, job: View) -> None: ...


class Silent:
    """Keeps nothing."""

    decisions: tuple[Decision, ...] = ()
    events: tuple[AnyEvent, ...] = ()

    def started(self, job: View) -> None:
        pass

    def dispatched(self, job: View, group: Group) -> None:
        pass

    def ended(self, job: View, execution: Execution, scored: bool) -> None:
        pass

    def taken(self, job: View, group: Group) -> None:
        pass

    def granted(self, job: View, cell: int, to_training: bool) -> None:
        pass

    def settled(self, job: View, cell: int) -> None:
        pass

    def committed(self, job: View) -> None:
        pass

    def published(self, job: View) -> None:
        pass

    def passed(self, job: View) -> None:
        pass


class Recording:
    """Keeps everything, as a real job's `metrics.jsonl` does, so that the same report can be drawn."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._decisions: list[Decision] = []
        self._events: list[AnyEvent] = []
        self._level: TideRead | None = None
        self._opened = 0.0  # the open step
        self._staleness = (0, 0)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(self._decisions)

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        return tuple(self._events)

    def started(self, job: View) -> None:
        how = job.setup
        names = tuple(c.name for c in job.cells) + tuple(f"standalone-{n}" for n in range(how.standalone))
        started = JobStarted(
            time=0.0,
            job=self._name,
            mode=how.mode,
            steps=how.plan.steps,
            cells=names,
            capacities=(how.capacity,) * len(names),
            cores_shared=False,
        )
        self._events += [started, *(RoleAcknowledged(time=0.0, cell=name, role=Role.ROLLOUT, epoch=1) for name in names)]

    def dispatched(self, job: View, group: Group) -> None:
        self._decide(job, "dispatch", f"group {group.number} under version {group.version}")

    def ended(self, job: View, execution: Execution, scored: bool) -> None:
        self._events.append(
            ExecutionEnded(
                time=job.now,
                execution=f"g{execution.group}-{execution.place}",
                group=execution.group,
                task="",
                seconds=job.now - execution.started if execution.started >= 0 else 0.0,
                turns=0,
                sampled_tokens=round(execution.tokens),
                score=0.0 if scored else None,
                dropped="" if scored else "group time-out",
            )
        )

    def taken(self, job: View, group: Group) -> None:
        publications, updates = self._staleness
        self._staleness = (max(publications, job.version - group.version), max(updates, job.committed - group.version_step))
        self._decide(job, "take", f"group {group.number} into step {job.committed + 1}")

    def granted(self, job: View, cell: int, to_training: bool) -> None:
        self._decide(job, "train" if to_training else "return", job.cells[cell].name)

    def settled(self, job: View, cell: int) -> None:
        it = job.cells[cell]
        if it.epoch == 1:  # the first weights: not a flip
            return
        role = Role.ROLLOUT if it.in_rollout else Role.TRAINING
        seconds = job.now - it.since
        self._events += [
            RoleAcknowledged(time=job.now, cell=it.name, role=role, epoch=it.epoch),
            FlipEnded(time=job.now, cell=it.name, to=role, epoch=it.epoch, seconds=seconds, phases={}, calls_in_flight=0),
        ]

    def committed(self, job: View) -> None:
        self._decide(job, "commit", f"step {job.committed}")
        scored = [e for g in job.taken for e in g.executions if e.tokens]
        self._events.append(
            StepCommitted(
                time=job.now,
                step=job.committed,
                seconds=job.now - self._opened,
                groups=len(job.taken),
                executions=len(scored),
                trained_tokens=round(sum(e.tokens for e in scored)),
                mean_score=None,
                staleness=self._staleness[0],
                staleness_updates=self._staleness[1],
                statistics={},
                contributions={job.cells[c].name: n for c, n in sorted(job.trainers.commit().items())},
            )
        )
        self._opened, self._staleness = job.now, (0, 0)

    def published(self, job: View) -> None:
        self._decide(job, "publish", f"version {job.version}")
        self._events.append(VersionPublished(time=job.now, version=job.version, step=job.committed, digest=""))
        self._opened = job.now
        if job.committed == job.setup.plan.steps:
            self._events.append(JobEnded(time=job.now, phase="Succeeded"))

    def passed(self, job: View) -> None:
        level = TideRead(
            time=0.0,
            dispatched=job.dispatched,
            started=job.dispatched - len(job.pending),
            terminated=job.terminated,
            rollout_capacity=job.tide().rollout_capacity,
            ready_groups=len(job.ready),
            step=job.committed,
            burst=job.bursts if job.burst else 0,
        )
        if level != self._level and not (self._events and isinstance(self._events[-1], JobEnded)):
            self._level = level
            self._events.append(
                TideRead(
                    time=job.now,
                    dispatched=level.dispatched,
                    started=level.started,
                    terminated=level.terminated,
                    rollout_capacity=level.rollout_capacity,
                    ready_groups=level.ready_groups,
                    step=level.step,
                    burst=level.burst,
                )
            )

    def _decide(self, job: View, kind: str, what: str) -> None:
        self._decisions.append(Decision(job.now, kind, what))

"""One reading of the job: for the rules (policy), and for everybody else (wire)."""

from __future__ import annotations

from tidemill.policy.tide import Tide as PolicyTide
from tidemill.telemetry.events import TideRead
from tidemill.wire.cell import Role
from tidemill.wire.conductor import JobPhase, Tide
from tidemill_rollout.conductor import bursts, executions, groups, job, outlook, steps
from tidemill_rollout.conductor.cells import Cell
from tidemill_rollout.conductor.conditions import Conditions
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database


def for_rules(db: Database, settings: Settings, cells: tuple[Cell, ...], about_to_dispatch: int = 0) -> PolicyTide:
    """`about_to_dispatch` executions are counted as dispatched."""
    counts = executions.counts(db)
    return PolicyTide(
        dispatched=counts.dispatched + about_to_dispatch,
        terminated=counts.terminated,
        cells=tuple(c.view() for c in cells if not c.standalone),
        standalone_capacity=sum(c.capacity for c in cells if c.standalone and c.usable and not c.late),
        ready_groups=groups.ready(db),
        groups_due=bursts.groups_due(db, settings),
    )


def for_all(db: Database, settings: Settings, cells: tuple[Cell, ...], conditions: Conditions, controller: str, sequence: int, now: float) -> Tide:
    counts = executions.counts(db)
    burst = bursts.current(db)
    version = bursts.published(db)
    core = next(c for c in cells if c.is_core)
    _, _, mean_score = steps.last_committed(db)
    (term,) = db.execute("SELECT term FROM job").fetchone()
    phase, reason = job.phase(db)
    return Tide(
        sequence=sequence,
        job=settings.job,
        mode=settings.mode,
        phase=_phase(db, cells, conditions, counts.started),
        step=bursts.committed_steps(db),
        steps=settings.plan.steps,
        burst=burst.number if burst else 0,
        policy_version=version.version if version else -1,
        dispatched=counts.dispatched,
        started=counts.started,
        terminated=counts.terminated,
        ready_groups=groups.ready(db),
        staleness_max=steps.largest_staleness(db),
        cells=tuple(c.tide() for c in cells),
        controller=controller,
        term=term,
        core_url=core.state.trainer_url if core.state else "",
        weights_digest=version.digest if version else "",
        mean_score=mean_score,
        condition=reason or conditions.text,
        groups_due=bursts.groups_due(db, settings),
        ended="" if phase == "Running" else reason or f"all {settings.plan.steps} steps are trained",
        extensions=tuple(sorted(settings.extensions)),
        outlook=outlook.read(db, settings, cells, now),
    )


def event(db: Database, cells: tuple[Cell, ...], now: float) -> TideRead:
    counts = executions.counts(db)
    burst = bursts.current(db)
    return TideRead(
        time=now,
        dispatched=counts.dispatched,
        started=counts.started,
        terminated=counts.terminated,
        rollout_capacity=sum(c.capacity for c in cells if c.usable and not c.late and c.role is Role.ROLLOUT),
        ready_groups=groups.ready(db),
        step=bursts.committed_steps(db),
        burst=burst.number if burst else 0,
    )


def _phase(db: Database, cells: tuple[Cell, ...], conditions: Conditions, started: int) -> JobPhase:
    phase, _ = job.phase(db)
    if phase != "Running":
        return JobPhase(phase)
    if conditions.pausing:
        return JobPhase.PAUSED
    return JobPhase.RUNNING if started or any(c.serving for c in cells) else JobPhase.STARTING

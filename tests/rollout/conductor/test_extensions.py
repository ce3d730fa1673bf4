"""The extensions of the rule on real jobs: what they are told, what they decide, and that a job with them keeps all its promises."""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rollout.conductor.checks import check
from tests.rollout.conductor.test_constraints import controlled
from tests.rollout.conductor.test_terms import Operator
from tests.rollout.conductor.world import settings, turn, world
from tidemill.policy.burst import Plan
from tidemill.policy.extensions import DEFAULT, REAL, Extension
from tidemill.policy.outlook import Outlook
from tidemill.telemetry.events import TideRead
from tidemill.wire.cell import CellKind, CellPhase, CellState, Flip, Role
from tidemill.wire.conductor import Applied, Authority, GrantRequest, JobPhase, Published, SettingsChange
from tidemill.wire.gateway import Turns
from tidemill.wire.http import Refused, Rejected
from tidemill_rollout.conductor import bursts, cells, controller, executions, groups, job, microsteps, outlook, steps
from tidemill_rollout.conductor.controller import Holder
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database, Store

LONG = Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=1, steps=12)
ALL = frozenset(REAL)


@pytest.mark.parametrize("extensions", [frozenset({one}) for one in sorted(REAL)] + [ALL], ids=lambda e: "+".join(sorted(e)))
@pytest.mark.parametrize("refill", [False, True], ids=["Boundary", "Refill"])
async def test_a_job_with_extensions_runs_to_its_end_and_keeps_its_promises(tmp_path: Path, refill: bool, extensions: frozenset[Extension]) -> None:
    async with world(tmp_path, settings(plan=LONG, cells=3, capacity=2, refill=refill, extensions=extensions)) as job:
        job.trainers["cell-0"].micro_step_seconds = 0.01
        assert (await job.to_the_end(60)).phase is JobPhase.SUCCEEDED
        check(job)
        assert job.rows("SELECT COUNT(*) FROM trainings") == [(12,)]


async def test_refill_dispatches_inside_a_burst_and_nothing_gets_staler_than_it_may(tmp_path: Path) -> None:
    async with world(tmp_path, settings(plan=LONG, cells=3, refill=True, max_staleness=2)) as job:
        await job.to_the_end(60)
        check(job)
        pairs = itertools.pairwise(job.of(TideRead))
        assert any(a.burst == b.burst > 0 and b.dispatched > a.dispatched for a, b in pairs)
        assert job.rows("SELECT COUNT(*) FROM groups WHERE state = 'Trained'") == [(24,)]


async def test_an_operator_with_nothing_but_the_tide_decides_with_extensions_too(tmp_path: Path) -> None:
    async with world(tmp_path, settings(plan=LONG, cells=3, capacity=2, refill=True, extensions=ALL)) as job:
        running = asyncio.create_task(Operator(job, "operator").run())
        tide = await job.to_the_end(60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (tide.phase, tide.controller) == (JobPhase.SUCCEEDED, "operator")
        check(job)


async def test_extensions_are_switched_on_and_off_while_the_job_runs_and_that_is_not_forgotten(tmp_path: Path) -> None:
    async with world(tmp_path, settings(extensions=frozenset({Extension.STAY}))) as job:
        async with controlled(job) as term:
            assert (await job.until(lambda t: True)).extensions == ("Stay",)
            await job.client.change_settings(SettingsChange(term(), extensions=("GainGate", "EarlyReturn")))
            tide = await job.until(lambda t: t.extensions == ("EarlyReturn", "GainGate"))
            assert tide.outlook is not None
            with pytest.raises(Rejected, match="extension Oversubscribe is none that a real job has"):
                await job.client.change_settings(SettingsChange(term(), extensions=("Oversubscribe",)))
        await job.kill_conductor()
        await job.start_conductor()
        assert job.conductor.settings.extensions == {Extension.GAIN_GATE, Extension.EARLY_RETURN}
        async with controlled(job) as term:
            await job.client.change_settings(SettingsChange(term(), extensions=()))
            tide = await job.until(lambda t: t.extensions == ())
            assert tide.outlook is None
        await job.to_the_end()
        check(job)


HOW = settings(plan=LONG, cells=3, extensions=DEFAULT)
REPORTS = cells.Reports(since=0.0)


@contextmanager
def midway(how: Settings = HOW, flip_seconds: float = 4.0) -> Iterator[Database]:
    """At 100 s: step 1 of burst 1 is committed (8 trained tokens and 2 s of computing in each of 2 groups), all three cells are in training."""
    store = Store(Path(":memory:"))
    REPORTS.last.clear()
    with contextlib.closing(store), store.transaction() as db:
        job.open_job(db, how, 0.0)
        bursts.publish(db, Published(0, 0, "d"), 0.0)
        burst = bursts.begin(db, how, ("task",), 0.0)
        assert burst is not None
        end(db, 4, at=10.0)
        steps.assemble(db, how, burst, 10.0)
        for part in microsteps.lease(db, 0, "cell-0", 2, 99, 10.0):
            db.execute("UPDATE microsteps SET state = 'Counted' WHERE id = ?", (part.id,))
        steps.commit(db, 0, Applied("step-1", "d1", {"computeSeconds": 4.0}), 20.0)
        for name, back, there in (("cell-0", 1.0, 3.0), ("cell-1", 2.0, flip_seconds), ("cell-2", 6.0, 9.0)):
            report(db, name, Role.ROLLOUT, back)
            report(db, name, Role.TRAINING, there)
        yield db


def report(db: Database, name: str, role: Role, seconds: float) -> None:
    """It is granted and acknowledged; the flip took so long."""
    cells.grant(db, name, role, (), 20.0)
    epoch = cells.current_grant(db, name).epoch
    state = CellState(name, CellKind.SATELLITE, 0, "", CellPhase.READY, role, epoch, 4, last_flip=Flip(name, role, epoch, 20.0, seconds, {}))
    cells.note_report(db, state, 20.0)
    REPORTS.last[name] = (state, 100.0)


def end(db: Database, number: int, at: float) -> None:
    """So many executions start, say three tokens, and are scored."""
    for place, execution in enumerate(executions.start(db, number, 0.0)):
        executions.add_turns(db, Turns(execution.id, 1, (turn(execution.id, 1),)))
        executions.note_size(db, execution.id, executions.turns(db, execution.id))
        executions.evaluate(db, execution.id, 1)
        executions.score(db, execution.id, 1, float(place % 2), "", at)
    groups.settle(db, at)


def read(db: Database, how: Settings = HOW) -> Outlook:
    found = outlook.read(db, how, cells.read(db, REPORTS, 100.0), 100.0)
    assert found is not None
    return found


def test_costs_are_medians_of_measured_flips_and_work_is_told_in_measured_seconds() -> None:
    with midway() as db:
        tokens = microsteps.trained_tokens(db, 0)
        assert db.execute("SELECT groups, sampled_tokens, trained_tokens, seconds FROM trainings").fetchall()[0][:] == (2, 12, tokens, 4.0)
        found = read(db)
        assert (found.flip_seconds, found.return_seconds) == (4.0, 2.0)
        assert (found.backlog_seconds, found.due_seconds) == (0.0, pytest.approx(4.0)), "two groups of the burst are still to come, 2 s each"
        end(db, 2, at=30.0)
        found = read(db)
        assert (found.backlog_seconds, found.due_seconds) == (pytest.approx(2.0), pytest.approx(4.0)), "one of them is ready"
        assert found.pending == 6
        assert found.idle_cells == ("cell-0", "cell-1", "cell-2")


def test_before_anything_was_measured_the_published_rule_decides() -> None:
    store = Store(Path(":memory:"))
    with contextlib.closing(store), store.transaction() as db:
        job.open_job(db, HOW, 0.0)
        assert read(db) == Outlook()
        assert outlook.read(db, settings(), (), 0.0) is None, "nobody asks"
        bursts.publish(db, Published(0, 0, "d"), 0.0)
        bursts.begin(db, HOW, ("task",), 0.0)
        assert read(db).due_seconds >= 4 * outlook.LONG_SECONDS


def test_a_satellite_with_nothing_to_do_goes_back_in_mid_burst_when_executions_wait_and_nothing_is_ready_soon() -> None:
    with midway() as db:
        known = cells.read(db, REPORTS, 100.0)
        assert controller.may_return(db, HOW, known, 100.0) == ()
        executions.start(db, 1, 100.0)  # 10 s are left to it, more than 4 s there and 2 s back
        assert read(db).next_ready_seconds == 10.0
        assert controller.may_return(db, HOW, known, 100.0) == ("cell-2",)
        assert controller.may_return(db, settings(plan=LONG, cells=3), known, 100.0) == ()
        controller.flip(db, HOW, known, 100.0)
        assert [cells.current_grant(db, f"cell-{n}").role for n in range(3)] == [Role.TRAINING, Role.TRAINING, Role.ROLLOUT]


def test_a_satellite_stays_when_a_group_will_soon_be_ready_or_one_holds_a_micro_step() -> None:
    with midway(flip_seconds=9.0) as db:
        executions.start(db, 1, 100.0)
        assert controller.may_return(db, HOW, cells.read(db, REPORTS, 100.0), 100.0) == (), "10 s are less than 9 s there and 2 s back"
    with midway() as db:
        end(db, 2, at=30.0)
        executions.start(db, 1, 100.0)
        burst = bursts.current(db)
        assert burst is not None
        steps.assemble(db, HOW, burst, 100.0)
        assert microsteps.lease(db, 1, "cell-2", 3, 99, 100.0)
        assert read(db).idle_cells == ("cell-0", "cell-1")
        assert controller.may_return(db, HOW, cells.read(db, REPORTS, 100.0), 100.0) == ()


def test_the_way_back_is_granted_on_request_only_to_whom_the_rule_sends_back() -> None:
    with midway() as db:
        known, holder = cells.read(db, REPORTS, 100.0), Holder(0.0)
        term = controller.hold_term(db, holder, Authority("operator"), 100.0).term
        executions.start(db, 1, 100.0)

        def ask(cell: str, how: Settings = HOW) -> Role:
            return controller.grant_on_request(db, how, known, holder, GrantRequest(cell, Role.ROLLOUT, term, 1), 100.0).role

        with pytest.raises(Refused, match="returns to rollout at the end of its burst"):
            ask("cell-1")
        with pytest.raises(Refused, match="returns to rollout at the end of its burst"):
            ask("cell-2", settings(plan=LONG, cells=3))
        assert ask("cell-2") is Role.ROLLOUT


@pytest.mark.parametrize(("seconds", "leaves"), [(40.0, ("cell-2",)), (0.1, ())])
def test_a_satellite_leaves_only_for_more_training_than_its_flips_cost(seconds: float, leaves: tuple[str, ...]) -> None:
    with midway() as db:
        db.execute("UPDATE trainings SET seconds = ?", (seconds,))
        report(db, "cell-2", Role.ROLLOUT, 2.0)
        db.execute("UPDATE executions SET state = 'Dropped' WHERE state = 'Pending'")
        known = cells.read(db, REPORTS, 100.0)
        assert controller.may_leave(db, HOW, known, 100.0) == leaves
        assert controller.may_leave(db, settings(plan=LONG, cells=3), known, 100.0) == ("cell-2",)


@pytest.mark.parametrize(("seconds", "stay"), [(100.0, ["cell-0", "cell-1"]), (0.1, ["cell-0"])])
def test_at_the_end_of_a_burst_a_satellite_stays_when_enough_is_ready_for_it(seconds: float, stay: list[str]) -> None:
    """Eight groups of twelve steps are dispatched at once: the third cell carries what is unfinished."""
    how = settings(plan=LONG, cells=3, capacity=12, extensions=DEFAULT)
    with midway(how) as db:
        db.execute("UPDATE trainings SET seconds = ?", (seconds,))
        db.execute("UPDATE roles SET capacity = 12")
        end(db, 4, at=30.0)
        db.execute("UPDATE bursts SET ended = 30")
        controller.end_burst(db, how, cells.read(db, REPORTS, 100.0), 100.0)
        assert [f"cell-{n}" for n in range(3) if cells.current_grant(db, f"cell-{n}").role is Role.TRAINING] == stay

"""The counters: started = finished + dropped once all is over, and at every moment f <= d, whatever attempts are made and lost."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.rollout.conductor.world import Ended, settings, turn
from tidemill.wire.conductor import Published
from tidemill.wire.gateway import Turns
from tidemill.wire.http import Rejected
from tidemill_rollout.conductor import bursts, executions, groups, job
from tidemill_rollout.conductor.life import failure_of
from tidemill_rollout.conductor.store import Store


def opened(folder: Path) -> Store:
    store = Store(folder / "conductor.db")
    with store.transaction() as db:
        job.open_job(db, settings(), now=0.0)
        if bursts.published(db) is None:
            bursts.publish(db, Published(0, 0, "d"), 0.0)
            bursts.begin(db, settings(), ("one", "two"), 0.0)
    return store


class Executions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = opened(self.folder)
        self.store.db.execute("PRAGMA synchronous = OFF")
        self.started: set[str] = set()
        self.low = 0

    def teardown(self) -> None:
        with self.store.transaction() as db:
            for execution in (*executions.start(db, 100, 5.0), *executions.in_state(db, "Running")):
                executions.evaluate(db, execution.id, execution.attempt)
            for execution in executions.in_state(db, "Evaluating"):
                executions.score(db, execution.id, execution.attempt, 1.0, "", 6.0)
            groups.settle(db, 7.0)
            counts = executions.counts(db)
        assert counts.dispatched == counts.terminated == 12
        ended = self.store.db.execute('SELECT COUNT(*) FROM events WHERE CAST(line AS TEXT) LIKE \'%"event":"execution"%\'').fetchone()[0]
        assert ended == 12, "each end is told once"
        assert self.store.db.execute("SELECT COUNT(*) FROM groups WHERE state NOT IN ('Ready', 'Dropped')").fetchone()[0] == 0
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(free=st.integers(-1, 4))
    def start(self, free: int) -> None:
        with self.store.transaction() as db:
            self.started |= {e.id for e in executions.start(db, free, 1.0)}

    @rule(data=st.data(), older=st.booleans())
    def attempt_ends(self, data: st.DataObject, older: bool) -> None:
        """One of an older attempt comes too late and must change nothing."""
        running = [*executions.in_state(self.store.db, "Running"), *executions.in_state(self.store.db, "Evaluating")]
        if not running:
            return
        execution = data.draw(st.sampled_from(running))
        attempt = execution.attempt - older
        with self.store.transaction() as db:
            if data.draw(st.booleans()):
                executions.requeue(db, execution.id, attempt, "gateway failed", 2.0)
            else:
                executions.evaluate(db, execution.id, attempt)
                executions.score(db, execution.id, attempt, 1.0, "", 2.0)
        if older:
            assert executions.one(self.store.db, execution.id) == execution

    @rule(data=st.data())
    def dropped(self, data: st.DataObject) -> None:
        alive = [e for state in ("Pending", "Running", "Evaluating") for e in executions.in_state(self.store.db, state)]
        if alive:
            with self.store.transaction() as db:
                executions.drop(db, data.draw(st.sampled_from(alive)).id, "group time-out", 3.0)

    @rule()
    def settle(self) -> None:
        with self.store.transaction() as db:
            groups.settle(db, 4.0)

    @rule()
    def conductor_dies(self) -> None:
        self.store.close()
        self.store = opened(self.folder)
        assert executions.in_state(self.store.db, "Running") == ()

    @invariant()
    def counters_only_grow_and_agree_with_what_happened(self) -> None:
        counts = executions.counts(self.store.db)
        assert counts.dispatched == 12
        assert counts.started == len(self.started)
        assert self.low <= counts.terminated <= counts.dispatched
        self.low = counts.terminated


TestExecutions = Executions.TestCase
TestExecutions.settings = limits(max_examples=30, stateful_step_count=30, deadline=None)


def test_a_turn_is_kept_once_however_often_it_is_told(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.transaction() as db:
        (execution,) = executions.start(db, 1, 1.0)
        for _ in range(2):
            executions.add_turns(db, Turns(execution.id, 1, (turn(execution.id, 1),)))
        executions.add_turns(db, Turns(execution.id, 1, (turn(execution.id, 1, "t2", "t1"),)))
    assert [t.id for t in executions.turns(store.db, execution.id)] == ["t1", "t2"]


def test_turns_of_an_older_attempt_are_acknowledged_and_forgotten(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.transaction() as db:
        (execution,) = executions.start(db, 1, 1.0)
        executions.add_turns(db, Turns(execution.id, 1, (turn(execution.id, 1),)))
        executions.requeue(db, execution.id, 1, "sandbox failed", 1.0)
        executions.add_turns(db, Turns(execution.id, 1, (turn(execution.id, 1, "late"),)))
        executions.add_turns(db, Turns(execution.id, 2, (turn(execution.id, 2, "new"),)))
    assert [t.id for t in executions.turns(store.db, execution.id)] == ["new"]


def test_turns_of_an_unknown_execution_are_refused_by_name(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(Rejected, match="execution g99-0"), store.transaction() as db:
        executions.add_turns(db, Turns("g99-0", 1, ()))


@pytest.mark.parametrize(
    ("end", "turns", "failure"),
    [
        (Ended(0), 1, ""),
        (Ended(1), 1, ""),
        (Ended(137, timed_out=True), 3, ""),
        (Ended(0), 0, ""),
        (Ended(1, log_tail="a\nno such file\n"), 0, "harness never called the model: it ended with code 1, last line: no such file"),
        (Ended(137, timed_out=True), 0, "harness never called the model: it ran into its time-out"),
        (Ended(137, stopped="more than 512 processes"), 0, "harness never called the model: it was stopped (more than 512 processes)"),
    ],
)
def test_only_a_harness_that_never_called_the_model_blames_the_infrastructure(end: Ended, turns: int, failure: str) -> None:
    assert failure_of(end, turns) == failure

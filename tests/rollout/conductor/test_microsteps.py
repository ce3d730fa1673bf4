"""Exactly once, whatever is interleaved: a model of trainers' sums runs beside the queue, and the store is reopened in between."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.rollout.conductor.world import settings
from tidemill.trajectory.sequence import Sequence
from tidemill.wire.cell import Role
from tidemill.wire.conductor import Applied, Contribution, Grant, LeaseIds, LeaseRequest, Work
from tidemill.wire.http import Refused
from tidemill_rollout.conductor import cells, job, microsteps, steps, work
from tidemill_rollout.conductor.store import Database, Store

CELLS = ("cell-0", "cell-1", "cell-2")
EPOCH = 2
MICRO_STEPS = 4

SEQUENCE = Sequence("g1-0", (1, 2), (False, True), (-0.5,), (0,), (0.25,))


def open_step(db: Database, step: int) -> None:
    """A step that takes no more groups, with all its micro-steps in the queue."""
    if step == 0:
        db.execute("INSERT INTO bursts VALUES (1, 0, 100, 0, 0, NULL)")
        db.execute("INSERT INTO versions VALUES (0, 0, 'd', 0)")
        db.execute("INSERT INTO steps (step, burst, opened) VALUES (0, 1, 0)")
    db.execute(
        "INSERT INTO groups (id, purpose, task, version, state, created, step) VALUES (?, 'Train', 'one', 0, 'Assigned', 0, ?)", (step + 1, step)
    )
    microsteps.append(db, step, step + 1, [(SEQUENCE,)] * MICRO_STEPS)
    db.execute("UPDATE steps SET closed = 1 WHERE step = ?", (step,))


def new_store(folder: Path) -> Store:
    store = Store(folder / "conductor.db")
    store.db.execute("PRAGMA synchronous = OFF")  # the test kills no machine
    with store.transaction() as db:
        job.open_job(db, settings(cells=3), now=0.0)
        for name in CELLS:
            cells.grant(db, name, Role.TRAINING, (), 0.0)
        open_step(db, 0)
    return store


def ask(store: Store, cell: str, incarnation: str = "a", holding: tuple[str, ...] | None = None, epoch: int = EPOCH, step: int = -1) -> Any:
    request = LeaseRequest(cell, epoch, incarnation, holding=holding, checkpoint_step=step)
    with store.transaction() as db:
        work.admit(db, request)
        return work.next_work(db, request, Grant(cell, Role.TRAINING, EPOCH), now=1.0)


class Queue(RuleBasedStateMachine):
    """`sums` are what trainers hold in memory, `weights` what is in durable checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = new_store(self.folder)
        self.now = 0.0
        self.lives = dict.fromkeys(CELLS, 1)
        self.sums: dict[str, list[tuple[str, str]]] = {cell: [] for cell in CELLS}  # lease, micro-step
        self.late: list[tuple[Contribution, list[str], int]] = []  # sums of cells, on their way to the core
        self.in_core: list[str] = []
        self.told: list[Contribution] = []  # to the core's present life
        self.weights: list[list[str]] = []
        with self.store.transaction() as db:
            for cell in CELLS:
                work.admit(db, LeaseRequest(cell, EPOCH, "1"))

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @property
    def step(self) -> int:
        return len(self.weights)

    @rule(cell=st.sampled_from(CELLS), lost=st.booleans())
    def ask_for_work(self, cell: str, lost: bool) -> None:
        """An answer may get lost on the way; the next question tells what arrived."""
        holding = tuple(lease for lease, _ in self.sums[cell])
        request = LeaseRequest(cell, EPOCH, str(self.lives[cell]), 2, self.step if cell == "cell-0" else -1, holding=holding)
        with self.store.transaction() as db:
            work.admit(db, request)
            reply = work.next_work(db, request, Grant(cell, Role.TRAINING, EPOCH), self.now)
        if reply is None or lost:
            return
        assert reply.work in (Work.COMPUTE, Work.WAIT, Work.APPLY)
        self.sums[cell] += [(m.lease, m.id) for m in reply.micro_steps]

    @rule(cell=st.sampled_from(CELLS), works=st.booleans())
    def work_a_while(self, cell: str, works: bool) -> None:
        """The usual course: compute, hand over, be counted."""
        self.ask_for_work(cell, lost=False)
        if works:
            self.send_sum(cell)
            self._count(self.late.pop())

    @rule(cell=st.sampled_from(CELLS))
    def send_sum(self, cell: str) -> None:
        """The core has read it; it is not yet counted."""
        leases, ids = [lease for lease, _ in self.sums[cell]], [name for _, name in self.sums[cell]]
        self.late.append((Contribution(cell, EPOCH, tuple(leases)), ids, self.lives["cell-0"]))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def count_sum(self, data: st.DataObject) -> None:
        self._count(self.late.pop(data.draw(st.integers(0, len(self.late) - 1))))

    def _count(self, late: tuple[Contribution, list[str], int]) -> None:
        told, ids, core_life = late
        if core_life != self.lives["cell-0"]:
            return  # the core that had read it is dead
        known = set(self.in_core)
        try:
            with self.store.transaction() as db:
                microsteps.count(db, self.step, told)
        except Refused:
            pass
        else:
            if not known.issuperset(ids):
                assert known.isdisjoint(ids)
                self.in_core += ids
                self.told.append(told)
        self.sums[told.cell] = [(lease, name) for lease, name in self.sums[told.cell] if lease not in told.leases]

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def count_again(self, data: st.DataObject) -> None:
        """The answer got lost: the core tells the same again, and must not be refused."""
        told = data.draw(st.sampled_from(self.told))
        with self.store.transaction() as db:
            microsteps.count(db, self.step, told)

    @precondition(lambda self: any(self.sums.values()))
    @rule(cell=st.sampled_from(CELLS))
    def give_back(self, cell: str) -> None:
        with self.store.transaction() as db:
            microsteps.give_back(db, LeaseIds(cell, tuple(lease for lease, _ in self.sums[cell])))
        self.sums[cell] = []

    @precondition(lambda self: any(self.sums.values()))
    @rule(cell=st.sampled_from(CELLS))
    def renew(self, cell: str) -> None:
        try:
            with self.store.transaction() as db:
                microsteps.renew(db, LeaseIds(cell, tuple(lease for lease, _ in self.sums[cell])), self.now)
        except Refused:
            self.sums[cell] = []

    @rule(seconds=st.sampled_from([1.0, 300.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        with self.store.transaction() as db:
            microsteps.expire(db, self.now)

    @rule(cell=st.sampled_from(CELLS))
    def trainer_dies(self, cell: str) -> None:
        self.lives[cell] += 1
        self.sums[cell] = []
        if cell == "cell-0":
            self.in_core, self.told = [], []
        request = LeaseRequest(cell, EPOCH, str(self.lives[cell]))
        with self.store.transaction() as db:
            work.admit(db, request)

    @precondition(lambda self: max(self.lives.values()) > 1)
    @rule()
    def the_dead_ask(self) -> None:
        for cell, life in self.lives.items():
            if life > 1:
                with pytest.raises(Refused, match="replaced"):
                    ask(self.store, cell, str(life - 1))

    @rule()
    def conductor_dies(self) -> None:
        self.store.close()
        self.store = Store(self.folder / "conductor.db")
        with self.store.transaction() as db:
            job.open_job(db, settings(cells=3), self.now)

    @precondition(lambda self: self.in_core)
    @rule(finish=st.booleans())
    def apply(self, finish: bool) -> None:
        """The core finishes the step when it may; else it is refused."""
        for _ in range(MICRO_STEPS * finish):
            self.work_a_while("cell-0", works=True)
        with self.store.transaction() as db:
            complete = steps.to_apply(db)
        told = Applied(f"step-{self.step + 1}", f"digest-{self.step + 1}", {})
        if not complete:
            with pytest.raises(Refused), self.store.transaction() as db:
                steps.commit(db, self.step, told, self.now)
            return
        with self.store.transaction() as db:
            assert steps.commit(db, self.step, told, self.now)
            assert not steps.commit(db, self.step, told, self.now), "told twice, it changes nothing"
        self.weights.append(self.in_core)
        self.in_core, self.told = [], []
        with self.store.transaction() as db:
            open_step(db, self.step)

    @invariant()
    def every_micro_step_is_in_its_steps_weights_exactly_once(self) -> None:
        for step, ids in enumerate(self.weights):
            assert sorted(ids) == [f"s{step}-{n}" for n in range(MICRO_STEPS)]

    @invariant()
    def what_is_counted_is_what_the_core_holds(self) -> None:
        counted = [row["id"] for row in self.store.db.execute("SELECT id FROM microsteps WHERE state = 'Counted'")]
        assert sorted(counted) == sorted(self.in_core)


TestQueue = Queue.TestCase
TestQueue.settings = limits(max_examples=30, stateful_step_count=40, deadline=None)


def test_micro_steps_are_handed_out_in_order_each_under_a_lease_of_its_own(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    first, second = ask(store, "cell-0"), ask(store, "cell-1")
    assert [m.id for m in (*first.micro_steps, *second.micro_steps)] == ["s0-0", "s0-1"]
    assert first.micro_steps[0].lease != second.micro_steps[0].lease
    assert first.micro_steps[0].sequences == (SEQUENCE,)


def test_a_sum_with_one_lease_that_has_ended_is_refused_whole(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    leases = [ask(store, "cell-1").micro_steps[0].lease for _ in range(2)]
    with store.transaction() as db:
        microsteps.give_back(db, LeaseIds("cell-1", (leases[0],)))
    with pytest.raises(Refused, match=rf"step 0: a sum of cell cell-1 .*{leases[0]} \(ended\); discard the whole sum"), store.transaction() as db:
        microsteps.count(db, 0, Contribution("cell-1", EPOCH, tuple(leases)))
    assert microsteps.counted(store.db, 0) == 0


def test_a_sum_that_holds_what_is_counted_already_and_more_is_refused_whole(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    leases = tuple(ask(store, "cell-1").micro_steps[0].lease for _ in range(2))
    with store.transaction() as db:
        microsteps.count(db, 0, Contribution("cell-1", EPOCH, leases[:1]))
    with pytest.raises(Refused, match=rf"{leases[0]} \(Counted\)"), store.transaction() as db:
        microsteps.count(db, 0, Contribution("cell-1", EPOCH, leases))
    assert microsteps.counted(store.db, 0) == 1


def test_a_lease_counts_only_for_the_cell_and_epoch_it_was_given_to(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    (micro_step,) = ask(store, "cell-1").micro_steps
    for told in (Contribution("cell-2", EPOCH, (micro_step.lease,)), Contribution("cell-1", EPOCH + 1, (micro_step.lease,))):
        with pytest.raises(Refused), store.transaction() as db:
            microsteps.count(db, 0, told)


def test_a_new_core_has_everything_counted_but_not_committed_computed_again(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    mine, others = ask(store, "cell-0").micro_steps[0], ask(store, "cell-1").micro_steps[0]
    with store.transaction() as db:
        microsteps.count(db, 0, Contribution("cell-0", EPOCH, (mine.lease,)))
        microsteps.count(db, 0, Contribution("cell-1", EPOCH, (others.lease,)))
    still_held = ask(store, "cell-2").micro_steps[0].lease
    again = ask(store, "cell-0", incarnation="b")
    assert again.micro_steps[0].id == "s0-0"
    assert microsteps.counted(store.db, 0) == 0
    assert microsteps.held(store.db, "cell-2") == {still_held}, "what a satellite has in hand is still good"


def test_a_core_with_other_weights_than_the_committed_ones_gets_no_work(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with pytest.raises(Refused, match="holds weights of step 3, but 0 steps are committed"):
        ask(store, "cell-0", step=3)


def test_an_answer_that_got_lost_frees_what_it_held(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    lost = ask(store, "cell-1").micro_steps[0]
    again = ask(store, "cell-1", holding=()).micro_steps[0]
    assert (again.id, again.lease != lost.lease) == (lost.id, True)


def test_a_trainer_of_an_older_epoch_is_told_that_its_grant_is_over_and_of_a_newer_one_is_refused(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    assert ask(store, "cell-1", epoch=EPOCH - 1).work is Work.OVER
    assert ask(store, "cell-0", epoch=EPOCH - 1) is None, "the core goes on asking"
    with pytest.raises(Refused, match="epoch 3 was never granted"):
        ask(store, "cell-1", epoch=EPOCH + 1)


def test_with_nothing_left_to_lease_whoever_holds_a_sum_is_told_at_once_and_the_core_to_apply_at_the_end(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    leases = tuple(ask(store, "cell-1").micro_steps[0].lease for _ in range(MICRO_STEPS))
    assert ask(store, "cell-1").work is Work.WAIT
    assert ask(store, "cell-0") is None, "it waits for what the other holds"
    with store.transaction() as db:
        microsteps.count(db, 0, Contribution("cell-1", EPOCH, leases))
    reply = ask(store, "cell-0")
    assert (reply.work, reply.step, reply.count) == (Work.APPLY, 0, MICRO_STEPS)

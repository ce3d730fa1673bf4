from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.conductor.world import settings, turn
from tidemill.policy.burst import Plan
from tidemill.wire.conductor import Published
from tidemill.wire.gateway import Turns
from tidemill_rollout.conductor import bursts, executions, groups, job, steps
from tidemill_rollout.conductor.bursts import Burst
from tidemill_rollout.conductor.groups import Group
from tidemill_rollout.conductor.store import Store
from tidemill_rollout.conductor.tasks import task_of

BURST = Burst(1, 0, 2, version=1)
HOW = settings(plan=Plan(groups_per_step=2, steps_per_burst=2, prefetch_steps=1, steps=8))


def group(number: int, state: str, version: int = 1) -> Group:
    return Group(number, "Train", "one", version, state)


def chosen(waiting: tuple[Group, ...], assigned: int = 0, places: int = 4, **changes: Any) -> tuple[list[int], bool]:
    taken, closed = steps.choose(waiting, assigned, places, BURST, settings(plan=HOW.plan, **changes))
    return [g.id for g in taken], closed


def test_a_step_takes_ready_groups_as_they_come_and_closes_when_it_is_full() -> None:
    assert chosen((group(1, "Ready"), group(2, "Open"), group(3, "Open"))) == ([1], False)
    assert chosen((group(4, "Ready"), group(2, "Open"), group(3, "Open")), assigned=1) == ([4], True)


def test_the_oldest_version_comes_first() -> None:
    assert chosen((group(7, "Ready", 0), group(1, "Ready"), group(2, "Ready"))) == ([7, 1], True)


def test_without_streaming_a_step_waits_for_all_its_groups() -> None:
    assert chosen((group(1, "Ready"), group(2, "Open")), streaming=False) == ([], False)
    assert chosen((group(1, "Ready"), group(2, "Ready")), streaming=False) == ([1, 2], True)


def test_a_step_closes_short_when_nothing_more_can_come() -> None:
    assert chosen((group(1, "Ready"),)) == ([1], True)
    assert chosen(()) == ([], True)


def test_a_step_waits_for_a_group_that_would_be_too_old_in_the_next_burst() -> None:
    waiting = (group(9, "Open", 0), group(1, "Ready"), group(2, "Ready"))
    assert chosen(waiting, assigned=1, places=1) == ([], False)
    assert chosen(waiting, assigned=1, places=1, drop_stale=True) == ([1], True)


def opened(folder: Path) -> Store:
    store = Store(folder / "conductor.db")
    with store.transaction() as db:
        job.open_job(db, HOW, now=0.0)
        bursts.publish(db, Published(0, 0, "d"), 0.0)
    return store


def test_what_would_exceed_the_bound_is_dropped_at_the_start_of_a_burst_with_all_its_executions(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with store.transaction() as db:
        bursts.begin(db, HOW, ("one",), 0.0)
        db.execute("UPDATE bursts SET ended = 1")
        db.execute("INSERT INTO versions VALUES (1, 0, 'e', 0), (2, 0, 'f', 0)")
        db.execute("DELETE FROM steps")
        before = executions.counts(db)
        bursts.begin(db, HOW, ("one",), 1.0)
        after = executions.counts(db)
    assert (before.dispatched, after.terminated - before.terminated) == (12, 12)
    reasons = {r["reason"] for r in store.db.execute("SELECT reason FROM groups WHERE state = 'Dropped'")}
    assert reasons == {"stale: dispatched under version 0, now 2"}


def test_a_step_becomes_the_same_micro_steps_whenever_it_is_assembled(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        store = opened(tmp_path / name)
        with store.transaction() as db:
            burst = bursts.begin(db, HOW, ("one",), 0.0)
            assert burst is not None
            for execution in executions.start(db, 4, 1.0):
                turns = tuple(turn(execution.id, 1, f"t{n}", f"t{n // 2}" if n > 1 else "") for n in range(1, 12))
                executions.add_turns(db, Turns(execution.id, 1, turns))
                executions.evaluate(db, execution.id, 1)
                executions.score(db, execution.id, 1, float(execution.id[-1]), "", 2.0)
            groups.settle(db, 2.0)
            steps.assemble(db, HOW, burst, 3.0)
        made.append([bytes(r["sequences"]) for r in store.db.execute("SELECT sequences FROM microsteps ORDER BY place")])
    assert made[0] == made[1]
    assert len(made[0]) == 2


@given(st.integers(1, 7), st.integers(0, 99), st.integers(1, 4))
def test_every_pass_over_the_tasks_takes_each_once_in_an_order_of_its_own(tasks: int, seed: int, passes: int) -> None:
    names = tuple(f"task-{n}" for n in range(tasks))
    order = [task_of(n, names, seed) for n in range(tasks * passes)]
    for begin in range(0, len(order), tasks):
        assert sorted(order[begin : begin + tasks]) == sorted(names)
    assert order == [task_of(n, names, seed) for n in range(tasks * passes)]

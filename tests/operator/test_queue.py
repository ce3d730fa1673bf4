from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tidemill_operator.queue import LONGEST_BACK_OFF_SECONDS, Schedule, WorkQueue


def test_a_key_is_once_in_the_queue_and_the_earlier_time_counts() -> None:
    schedule = Schedule[str]()
    schedule.add("a", 5.0)
    schedule.add("a", 3.0)
    schedule.add("a", 9.0)
    assert schedule.take(2.9) is None
    assert schedule.take(3.0) == "a"
    assert schedule.take(100.0) is None


def test_a_key_in_work_is_not_given_out_again_before_it_is_done() -> None:
    schedule = Schedule[str]()
    schedule.add("a", 0.0)
    assert schedule.take(0.0) == "a"
    schedule.add("a", 0.0)
    assert schedule.take(1.0) is None
    schedule.done("a")
    assert schedule.take(1.0) == "a"


def test_a_failing_key_is_put_off_longer_each_time_up_to_a_minute_and_a_success_forgets_it() -> None:
    schedule = Schedule[str]()
    pauses = [schedule.failed("a", 0.0) for _ in range(9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    schedule.done("a")
    assert schedule.failed("a", 0.0) == 0.5
    assert schedule.failed("a", 0.0, at_least_seconds=7.0) == 7.0
    assert [schedule.failed("b", 0.0, at_most_seconds=3.0) for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]


def test_the_key_that_waits_longest_comes_first() -> None:
    schedule = Schedule[str]()
    for key, at in (("late", 2.0), ("early", 1.0)):
        schedule.add(key, at)
    assert schedule.take(3.0) == "early"
    assert schedule.overdue_seconds(5.0) == 3.0


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "done", "failed"]), st.sampled_from("abc")), max_size=40))
def test_no_key_is_ever_in_work_twice(steps: list[tuple[str, str]]) -> None:
    schedule, working, now = Schedule[str](), set[str](), 0.0
    for what, key in steps:
        now += LONGEST_BACK_OFF_SECONDS
        match what:
            case "add":
                schedule.add(key, now)
            case "take":
                taken = schedule.take(now)
                assert taken not in working
                working |= {taken} if taken else set()
            case _ if key in working:
                working.discard(key)
                schedule.done(key) if what == "done" else schedule.failed(key, now)


async def test_one_jobs_failures_do_not_keep_another_from_its_passes() -> None:
    loop = asyncio.get_running_loop()
    queue = WorkQueue[str](loop.time)
    done = asyncio.Event()
    failures: list[str] = []

    async def work(key: str) -> None:
        if key == "bad":
            raise ValueError(key)
        done.set()

    def failed(key: str, _: Exception) -> tuple[float, float]:
        failures.append(key)
        queue.add("bad")
        return 0.0, 60.0

    queue.add("bad")
    running = asyncio.create_task(queue.run(work, failed, 1))
    while not failures:
        await asyncio.sleep(0)
    queue.add("good")
    await asyncio.wait_for(done.wait(), 5.0)
    running.cancel()
    assert failures == ["bad"], "a key that is put off is not brought forward"

"""Cells take so many calls at once; the others wait, and executions take turns."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.gateway.world import text_of, until, world
from tidemill.wire.gateway import Drain, Route
from tidemill_rollout.gateway import executions
from tidemill_rollout.gateway.admission import Line
from tidemill_rollout.gateway.rounds import Rounds
from tidemill_rollout.gateway.routing import Routes


def test_executions_take_turns_and_what_was_moved_goes_first() -> None:
    line: Line[str] = Line()
    for number in range(3):
        line.join("many", f"m{number}")
    line.join("one", "o0")
    line.join("one", "moved", moved=True)
    assert len(line) == 5
    assert [line.next() for _ in range(5)] == ["moved", "m0", "o0", "m1", "m2"]
    assert line.first() is None


def test_who_gives_up_is_passed_over() -> None:
    line: Line[str] = Line()
    for name in ("a", "b"):
        line.join("e", name)
    line.leave("e", "a")
    line.leave("e", "a")  # again
    line.leave("other", "x")
    assert (len(line), line.next(), line.first()) == (1, "b", None)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=60))
def test_nobody_waits_longer_than_one_call_of_each_other_execution_before_each_of_his_own(steps: list[tuple[int, bool]]) -> None:
    """Joins (True) and turns (False) in any order. Between two calls of one that always waits, no other has two."""
    line: Line[tuple[int, int]] = Line()
    waiting: Counter[int] = Counter()
    since: dict[int, Counter[int]] = {}  # for each that waits: calls of others since it began to, or since its last
    for number, (execution, joins) in enumerate(steps):
        if joins:
            line.join(str(execution), (execution, number))
            waiting[execution] += 1
            since.setdefault(execution, Counter())
        elif len(line):
            served, _ = line.next()
            waiting[served] -= 1
            for other, counts in since.items():
                if other != served:
                    counts[served] += 1
                    assert counts[served] <= 1 or waiting[other] == 0
            if waiting[served]:
                since[served] = Counter()
            else:
                del since[served]
    assert len(line) == sum(waiting.values())


async def test_a_crowd_that_comes_at_once_leaves_the_loop_time_for_others() -> None:
    rounds, worked, seen = Rounds(), 0, []

    def work() -> int:
        nonlocal worked
        worked += 1
        return worked

    async def others() -> None:
        while worked < 50:
            seen.append(worked)
            await asyncio.sleep(0)

    looking = asyncio.create_task(others())
    assert await asyncio.gather(*(rounds.do(work) for _ in range(50))) == list(range(1, 51))
    await looking
    assert max(after - before for before, after in pairwise(seen)) <= 2


async def test_work_that_fails_or_is_given_up_holds_nobody_up() -> None:
    rounds = Rounds()

    with pytest.raises(ZeroDivisionError):
        await rounds.do(lambda: 1 // 0)
    waiting = [asyncio.create_task(rounds.do(lambda: 1)) for _ in range(3)]
    await asyncio.sleep(0)
    for task in waiting[:2]:
        task.cancel()
    assert await asyncio.wait_for(waiting[2], 5) == 1


def route(capacity: int, cell: str = "cell-0", epoch: int = 1) -> Route:
    return Route(cell, epoch, 0, "http://none", capacity)


async def test_a_cell_takes_two_calls_for_each_place_and_its_share_of_them_where_gateways_share_it() -> None:
    for gateways, taken in ((1, 8), (3, 3)):
        routes = Routes(gateways=gateways)
        routes.put(route(4))
        tasks = [asyncio.create_task(routes.take(execution=f"{number}")) for number in range(20)]
        await asyncio.sleep(0)
        assert (routes.live, routes.waiting) == (taken, 20 - taken)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert routes.waiting == 0


async def test_a_lease_that_came_with_the_cancellation_is_given_back() -> None:
    routes = Routes()
    task = asyncio.create_task(routes.take())
    await asyncio.sleep(0)
    routes.put(route(1))  # the lease is there, the task has not run
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (routes.live, routes.waiting) == (0, 0)


async def test_an_execution_with_many_calls_does_not_starve_one_with_a_single_one(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.route(epoch=2, capacity=1)  # takes two at once
        engine = w.engines["cell-0"]
        engine.hold_after = 1
        await w.open("e2")
        many = [asyncio.create_task(w.ask(f"many {n}")) for n in range(20)]
        await until(lambda: len(engine.requests) == 2 and w.now.gateway.state().live_calls == 20)
        one = asyncio.create_task(w.ask("single", "e2"))
        await until(lambda: w.now.gateway.state().live_calls == 21)
        assert len(engine.requests) == 2
        engine.go.set()
        assert await asyncio.gather(one, *many) == ["hello"] * 21
        order = [text_of(request.token_ids) for request in engine.requests]
        assert next(place for place, prompt in enumerate(order) if "single" in prompt) <= 3


async def test_a_call_that_was_moved_does_not_wait_for_room(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "a long answer", cells=2) as w:
        await w.client.drain("cell-0", Drain(2))
        first, second = w.engines["cell-1"], w.engines["cell-0"]
        await w.route("cell-1", epoch=2, capacity=1)
        first.hold_after = 3
        asked = [asyncio.create_task(w.ask(f"{n}")) for n in range(3)]
        await until(lambda: len(first.requests) == 2)
        second.hold_after = 2
        await w.route("cell-0", epoch=3, capacity=1)  # the third goes there
        await until(lambda: len(second.requests) == 1)
        assert (await w.client.drain("cell-1", Drain(3))).moved == 2
        await until(lambda: len(second.requests) == 3)  # more than it takes of new ones
        second.go.set()
        assert await asyncio.gather(*asked) == ["a long answer"] * 3


async def test_the_line_is_bounded_and_who_does_not_fit_is_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "WAITING", 3)
    async with world(tmp_path) as w:
        await w.client.drain("cell-0", Drain(2))
        asked = [asyncio.create_task(w.ask(f"{n}")) for n in range(3)]
        await until(lambda: w.now.gateway._routes.waiting == 3)
        async with w.post("/x/e1/v1/messages", {"messages": [{"role": "user", "content": "more"}]}, key="key-of-e1") as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
            assert (await response.json())["error"]["type"] == "overloaded_error"
        await w.route(epoch=3)
        assert await asyncio.gather(*asked) == ["hello"] * 3
        assert await w.ask("more") == "hello"

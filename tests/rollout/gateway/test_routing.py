"""Which cell a call goes to."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.wire.gateway import Drain, Route
from tidemill.wire.http import Refused
from tidemill_rollout.gateway.routing import Load, Routes, choose


def load(ordinal: int, live: int, capacity: int = 8) -> Load:
    return Load(f"cell-{ordinal}", ordinal, capacity, live)


def route(ordinal: int, epoch: int = 1) -> Route:
    return Route(f"cell-{ordinal}", epoch, 0, "http://none", 8, ordinal)


def test_the_least_loaded_cell_for_its_size_is_chosen() -> None:
    assert choose([load(0, 4), load(1, 3)]) == "cell-1"
    assert choose([load(0, 4, capacity=16), load(1, 3)]) == "cell-0"
    assert choose([]) is None


def test_of_equals_the_one_that_stays_in_rollout_longest_is_chosen() -> None:
    assert choose([load(0, 2), load(2, 2), load(1, 2)]) == "cell-2"


def test_a_preferred_cell_is_kept_until_it_is_full() -> None:
    assert choose([load(0, 7), load(1, 0)], ["cell-0"]) == "cell-0"
    assert choose([load(0, 8), load(1, 0)], ["cell-0"]) == "cell-1"
    assert choose([load(0, 8), load(1, 1), load(2, 0)], ["cell-0", "cell-1"]) == "cell-1"
    assert choose([load(1, 0)], ["cell-0"]) == "cell-1"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=6))
def test_no_cell_with_less_relative_load_is_passed_over(cells: list[tuple[int, int]]) -> None:
    loads = [load(ordinal, *cell) for ordinal, cell in enumerate(cells)]
    chosen = next(one for one in loads if one.cell == choose(loads))
    assert all(chosen.relative <= other.relative for other in loads)


async def test_a_failing_cell_rests_longer_and_longer_until_it_works() -> None:
    now = 0.0
    routes = Routes(lambda: now)
    routes.put(route(0))
    for expected in (0.25, 0.5, 1.0):
        routes.failed("cell-0")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(routes.take(), 0.02)
        now += expected
        routes.leave(await asyncio.wait_for(routes.take(), 1))
    routes.works("cell-0")
    routes.failed("cell-0")
    now += 0.25
    await asyncio.wait_for(routes.take(), 1)


async def test_whoever_waits_goes_as_soon_as_a_cell_comes() -> None:
    routes = Routes()
    waiting = [asyncio.create_task(routes.take()) for _ in range(3)]
    await asyncio.sleep(0)
    assert routes.put(route(0))
    assert not routes.put(route(0))  # again: no news
    leases = await asyncio.wait_for(asyncio.gather(*waiting), 1)
    assert [lease.route.cell for lease in leases] == ["cell-0"] * 3


async def test_epochs_only_grow() -> None:
    routes = Routes()
    routes.put(route(0, epoch=3))
    await routes.drain("cell-0", Drain(4))
    for stale in (1, 3):
        with pytest.raises(Refused):
            routes.put(route(0, epoch=stale))
    assert not routes.epochs
    routes.put(route(0, epoch=5))
    assert routes.epochs == {"cell-0": 5}

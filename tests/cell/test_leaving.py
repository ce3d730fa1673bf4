"""What a pod asks of an agent: is it ready, and what it hands over before it ends. And a person: serve nothing."""

import asyncio

import aiohttp
import pytest

from tests.cell.world import Cell, World, living
from tidemill.wire.cell import CellPhase, Role
from tidemill.wire.http import Refused, Unreachable

ROLLOUT, TRAINING = Role.ROLLOUT, Role.TRAINING


async def readiness(cell: Cell) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{cell.client.base_url}/readyz") as answer:
        return answer.status, (await answer.text()).strip()


async def test_a_cell_is_ready_only_while_it_does_what_it_was_granted_and_says_why_not() -> None:
    async with living(children_up=False) as cell:
        await cell.state_when(lambda s: s.reason == "the engine is starting", "it says what it waits for")
        assert await readiness(cell) == (503, "Starting: the engine is starting")
        cell.engine_comes_up()
        cell.trainer.up()
        await cell.ready(ROLLOUT, 0)
        assert await readiness(cell) == (200, "Rollout under epoch 0")
        cell.world.script("sleep").hold = True
        await cell.order(TRAINING, 1)
        await cell.until(lambda: cell.world.script("sleep").begun == 1, "it flips")
        assert await readiness(cell) == (503, "Flipping: sleep")
        cell.world.script("sleep").released.set()
        await cell.ready(TRAINING, 1)
        assert await readiness(cell) == (200, "Training under epoch 1")


async def test_a_cell_with_wrong_weights_is_not_ready() -> None:
    world = World()
    world.loads_digest = "other"
    async with living(world=world) as cell:
        await cell.until(lambda: cell.world.script("weights").begun > 1, "it has tried")
        status, reason = await readiness(cell)
        assert status == 503
        assert reason.startswith("Starting: ")


async def test_a_cell_that_ends_in_rollout_moves_its_calls_says_so_and_takes_no_more() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.asked.clear()
        cell.world.script("drain").hold = True
        leaving = asyncio.create_task(cell.agent.leave())
        await cell.until(lambda: cell.world.reports[-1].phase is CellPhase.LEAVING, "the conductor knows")
        with pytest.raises(Refused, match="the cell is leaving"):
            await cell.call(epoch=0)
        assert not leaving.done()
        assert (await readiness(cell))[0] == 503
        cell.world.script("drain").released.set()
        await asyncio.wait_for(leaving, 10.0)
        assert cell.world.asked == ["drain 0"]
        assert cell.world.route is None
        await cell.world.publish(1)
        await cell.order(TRAINING, 1)
        await asyncio.sleep(0.3)  # in which it must do nothing of that
        assert cell.world.asked == ["drain 0"]


async def test_a_cell_that_ends_in_training_hands_over_its_gradients_and_does_not_wake_its_engine() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        cell.world.asked.clear()
        await asyncio.wait_for(cell.agent.leave(), 10.0)
        assert cell.world.asked == ["leave 1"]


async def test_a_gateway_that_is_away_is_asked_again_until_the_grace_period_is_over() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.script("drain").failures = 3
        await asyncio.wait_for(cell.agent.leave(), 10.0)
        assert cell.world.asked[-1] == "drain 0"


async def test_a_cell_that_ends_before_it_was_ever_ordered_anything_has_nothing_to_hand_over() -> None:
    world = World()
    world.script("report").failures = 10**6
    async with living(world=world) as cell:
        await asyncio.wait_for(cell.agent.leave(), 10.0)
        assert cell.world.asked == []


async def test_a_cordoned_cell_is_drained_acknowledges_and_serves_again_when_that_is_taken_back() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.world.asked.clear()
        await cell.world.cordon("cell-1", "cell-2")
        state = await cell.state_when(lambda s: s.reason.startswith("cordoned"), "it tells")
        assert (cell.world.asked, cell.world.route, state.phase) == (["drain 0"], None, CellPhase.STARTING)
        await cell.order(ROLLOUT, 1, "cell-0")
        await cell.state_when(lambda s: s.epoch == 1, "acknowledged")
        assert (await readiness(cell))[1].startswith("Starting: cordoned")
        await asyncio.sleep(0.3)  # several times as long as a route is put again
        assert cell.world.route is None
        await cell.world.cordon("cell-2")
        await cell.ready(ROLLOUT, 1)
        assert cell.world.route is not None


async def test_a_training_cell_works_for_the_core_where_it_is_now() -> None:
    async with living() as cell:
        await cell.order(TRAINING, 1)
        await cell.ready(TRAINING, 1)
        await cell.world.core_moves_to("http://10.0.0.9:7004")
        await cell.until(lambda: cell.world.core_url_joined == "http://10.0.0.9:7004", "it joins the core anew")
        assert cell.world.asked[-2:] == ["join 1", "join 1"]
        assert (await cell.ready(TRAINING, 1)).epoch == 1


async def test_after_its_end_began_a_dead_engine_does_not_hold_it_up() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.engine_dies()
        await asyncio.wait_for(cell.agent.leave(), 10.0)
        assert cell.world.route is None
        with pytest.raises((Refused, Unreachable)):
            await cell.call(epoch=0)

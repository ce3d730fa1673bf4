import asyncio
from collections.abc import Coroutine
from dataclasses import replace

import aiohttp
import msgspec
from aiohttp import web

from tests.rollout.conductor.test_controller import cell
from tidemill.wire.cell import CellPhase, Role, RoleOrder
from tidemill.wire.http import application, read, reply, serve
from tidemill_rollout.conductor.cells import Cell
from tidemill_rollout.conductor.orders import Orders


def flipping(url: str, epoch: int = 6, reported: int = 5) -> Cell:
    """Granted Training under `epoch`, but its agent at `url` still says Rollout."""
    one = cell("cell-1")
    assert one.state is not None
    state = msgspec.structs.replace(one.state, url=url, phase=CellPhase.READY, epoch=reported)
    return replace(one, role=Role.TRAINING, epoch=epoch, state=state)


async def test_a_grant_is_brought_once_to_each_agent_and_anew_to_one_that_came_back_under_another_address() -> None:
    took: list[tuple[str, RoleOrder]] = []

    async def agent(name: str) -> web.AppRunner:
        async def put_role(request: web.Request) -> web.Response:
            order = await read(request, RoleOrder)
            took.append((name, order))
            return reply(cell("cell-1").state, 202)

        app = application("token")
        app.router.add_put("/v1/role", put_role)
        return await serve(app, "127.0.0.1", 0)

    first, second = await agent("first"), await agent("second")
    urls = [f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in (first, second)]
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            orders = Orders("token", session, tasks.create_task)
            for _ in range(3):
                orders.push((flipping(urls[0]),))
            while not took:
                await asyncio.sleep(0.01)
            orders.push((flipping(urls[1]),))
            while len(took) < 2:
                await asyncio.sleep(0.01)
            orders.push((flipping(urls[1]),))
            orders.push((flipping(urls[1], reported=6),))  # it says so: nothing to bring
        assert took == [("first", RoleOrder(Role.TRAINING, 6)), ("second", RoleOrder(Role.TRAINING, 6))]
    finally:
        await first.cleanup()
        await second.cleanup()


async def test_an_agent_that_is_away_is_asked_until_it_answers_or_comes_back_elsewhere() -> None:
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        begun: list[asyncio.Task[None]] = []

        def spawn(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
            begun.append(tasks.create_task(work))
            return begun[-1]

        orders = Orders("token", session, spawn)
        orders.push((flipping("http://127.0.0.1:9"),))
        await asyncio.sleep(0.1)
        assert not begun[0].done()
        orders.push((flipping("http://127.0.0.1:10"),))
        await asyncio.wait((begun[0],))
        assert begun[0].cancelled()
        begun[1].cancel()

"""Cells of several nodes: rank 0 acknowledges when all have. Children are stand-ins; no parallel engine runs here."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.cell.world import TOKEN, Cell, ScriptedChild, living
from tidemill.wire.cell import CellClient, CellPhase, RankState, Role
from tidemill.wire.http import Rejected, serve
from tidemill_cell import follower as follower_module
from tidemill_cell.children import Health
from tidemill_cell.follower import Follower, Place
from tidemill_cell.metrics import registry_of_follower
from tidemill_cell.ranks import SILENT_SECONDS, Ranks

ROLLOUT, TRAINING = Role.ROLLOUT, Role.TRAINING


class Node:
    """One more node of the cell: its agent, and a child whose life is in the test's hands."""

    def __init__(self, follower: Follower, child: ScriptedChild, life: asyncio.Task[None]) -> None:
        self.follower = follower
        self.child = child
        self.life = life


@contextlib.asynccontextmanager
async def node(cell: Cell, rank: int, *, up: bool = True) -> AsyncIterator[Node]:
    async with aiohttp.ClientSession() as session:
        child = ScriptedChild("engine", session)
        place = Place("cell-1", rank, f"http://rank-{rank}")
        follower = Follower(place, (child,), CellClient(cell.client.base_url, TOKEN, session), report_seconds=0.02)
        life = asyncio.create_task(follower.run())
        if up:
            child.up()
        try:
            yield Node(follower, child, life)
        finally:
            life.cancel()
            await asyncio.wait((life,))


def state(rank: int, epoch: int = 5, role: Role = ROLLOUT, *, healthy: bool = True, reason: str = "") -> RankState:
    return RankState("cell-1", rank, "http://rank", role, epoch, healthy, "one", reason=reason)


async def test_a_cell_of_three_nodes_serves_when_the_last_of_them_is_up_and_acknowledges_when_all_have() -> None:
    async with living(nodes=3) as cell, node(cell, 1):
        await cell.state_when(lambda s: s.reason == "rank 2 has not reported yet", "it waits for rank 2")
        assert cell.world.route is None
        async with node(cell, 2, up=False) as last:
            await cell.state_when(lambda s: s.reason == "rank 2: its children are starting", "it waits for the children of rank 2")
            last.child.up()
            await cell.ready(ROLLOUT, 0)
            await cell.order(TRAINING, 1)
            await cell.ready(TRAINING, 1)
            assert last.follower.state().epoch == 1
            await cell.order(ROLLOUT, 2)
            await cell.ready(ROLLOUT, 2)


async def test_a_rank_that_has_not_acknowledged_holds_up_the_whole_cell() -> None:
    async with living(nodes=2) as cell, aiohttp.ClientSession() as session:
        leader = CellClient(cell.client.base_url, TOKEN, session)

        async def report(epoch: int, role: Role) -> None:
            answer = await leader.report_rank(state(1, epoch, role))
            assert answer.epoch >= epoch

        await report(-1, ROLLOUT)
        await cell.state_when(lambda s: s.reason == "rank 1 has not acknowledged Rollout under epoch 0", "all but the rank have")
        await report(0, ROLLOUT)
        await cell.ready(ROLLOUT, 0)
        await cell.order(TRAINING, 1)
        waiting = await cell.state_when(lambda s: s.reason == "rank 1 has not acknowledged Training under epoch 1", "all but the rank have")
        assert (waiting.phase, waiting.role, waiting.epoch) == (CellPhase.FLIPPING, ROLLOUT, 0)
        assert cell.world.joined == 1
        await report(0, ROLLOUT)
        assert (await cell.client.state()).epoch == 0
        await report(1, TRAINING)
        await cell.ready(TRAINING, 1)


async def test_a_child_that_dies_on_any_node_takes_the_cell_out_of_routing_until_the_engine_is_whole_again() -> None:
    async with living(nodes=2) as cell, node(cell, 1) as other:
        await cell.ready(ROLLOUT, 0)
        cell.world.asked.clear()
        other.child.down()
        await cell.until(lambda: cell.world.route is None, "it is drained")
        cell.world.loaded = (-1, "")
        other.child.up()
        await cell.ready(ROLLOUT, 0)
        assert cell.world.asked == ["drain 0", "weights 0", "route 0 0"]


async def test_a_rank_that_leaves_has_the_whole_cell_drained() -> None:
    async with living(nodes=2) as cell, node(cell, 1) as other:
        await cell.ready(ROLLOUT, 0)
        await asyncio.wait_for(other.follower.leave(), 10.0)
        await cell.until(lambda: cell.world.route is None, "it is drained")
        await cell.state_when(lambda s: s.reason == "rank 1 is leaving", "it tells")
        assert not other.follower.ready


async def test_a_node_of_another_cell_is_turned_away() -> None:
    async with living(nodes=2) as cell, aiohttp.ClientSession() as session:
        leader = CellClient(cell.client.base_url, TOKEN, session)
        for wrong in (RankState("cell-2", 1, "", ROLLOUT, 0, True, ""), state(0), state(2)):
            with pytest.raises(Rejected, match="this is cell-1 with 2 nodes"):
                await leader.report_rank(wrong)


async def test_the_agent_of_another_node_is_ready_when_it_has_acknowledged_and_says_why_not() -> None:
    async with living(nodes=2) as cell, node(cell, 1, up=False) as other:
        registry = registry_of_follower("tiny", "cell-1", 1, (other.child,))
        runner = await serve(follower_module.routes(other.follower, registry, TOKEN), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"

        async def ask(path: str) -> tuple[int, str]:
            async with aiohttp.ClientSession() as session, session.get(url + path) as answer:
                return answer.status, (await answer.text()).strip()

        try:
            assert await ask("/healthz") == (200, "ok")
            assert await ask("/readyz") == (503, "rank 1: has not acknowledged what rank 0 holds")
            other.child.up()
            await cell.ready(ROLLOUT, 0)
            assert await ask("/readyz") == (200, "Rollout under epoch 0")
            assert 'tidemill_cell_child_starts_total{job="tiny",cell="cell-1",rank="1",child="engine"} 1.0\n' in (await ask("/metrics"))[1]
            other.child.reason = "engine ended with code 1"
            other.child.down(Health.FAILED)
            assert await ask("/healthz") == (503, "engine ended with code 1")
        finally:
            await runner.cleanup()


def test_a_rank_that_falls_silent_is_taken_for_gone_and_comes_back_with_its_next_report() -> None:
    now = [0.0]
    ranks = Ranks("cell-1", 2, lambda: now[0])
    ranks.note(state(1))
    assert (ranks.trouble(), ranks.lagging(ROLLOUT, 5)) == ("", "")
    now[0] = SILENT_SECONDS + 0.1
    assert ranks.trouble() == "rank 1 has not reported for 15 s"
    assert ranks.lagging(ROLLOUT, 5)
    ranks.note(state(1))
    assert ranks.trouble() == ""


def test_a_cell_of_one_node_waits_for_nobody() -> None:
    ranks = Ranks("cell-1")
    assert (ranks.trouble(), ranks.lagging(TRAINING, 7), ranks.life) == ("", "", "")

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.cell.world import TOKEN, Cell, World, living
from tests.tidemill.telemetry.exported import OPENMETRICS, Series, series, undeclared, value
from tidemill.telemetry.catalogue import cell as catalogue
from tidemill.wire.cell import CellPhase, Role
from tidemill.wire.http import serve
from tidemill_cell.children import Child, Health, Program
from tidemill_cell.ledger import Ledger, idle_cause, role_now
from tidemill_cell.metrics import registry_of_follower
from tidemill_cell.process_group import ProcessGroup
from tidemill_cell.proxy import Proxy
from tidemill_cell.roles import Acknowledged, Engine, Phase, RoleOrder, Standing, Weights
from tidemill_cell.usage import usage

ROLLOUT, TRAINING = Role.ROLLOUT, Role.TRAINING


async def page(cell: Cell) -> str:
    async with cell.client._session.get(cell.client.base_url + "/metrics", headers={"Accept": OPENMETRICS}) as response:
        assert response.status == 200
        return await response.text()


async def figures(cell: Cell) -> Series:
    return series(await page(cell))


async def test_an_agent_exports_everything_that_is_declared_for_a_cell_and_nothing_else() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        told = await page(cell)
    assert undeclared(told, "cell") == []
    assert {m.family for m in catalogue.ALL if f"# TYPE {m.family} " not in told} == set()
    assert "gpu" not in told, "absent where there is none"


async def test_every_second_is_one_roles_and_a_flip_takes_those_from_order_to_acknowledgement() -> None:
    world = World()
    async with living(world=world) as cell:
        await cell.ready(ROLLOUT, 0)
        world.script("sleep").hold = True
        await cell.order(TRAINING, 1)
        await cell.until(lambda: world.script("sleep").begun > 0, "it is about to sleep")
        now = await figures(cell)
        assert value(now, "tidemill_cell_role", role="Flipping") == 1
        assert value(now, "tidemill_cell_role", role="Rollout") == 0
        assert value(now, "tidemill_cell_epoch") == 0
        world.script("sleep").released.set()
        await cell.ready(TRAINING, 1)
        await cell.order(ROLLOUT, 2)
        await cell.ready(ROLLOUT, 2)
        after = await figures(cell)
        seconds = {role: value(after, "tidemill_cell_role_seconds_total", role=role) for role in catalogue.ROLE_SECONDS.values["role"]}
        flips = {role: value(after, "tidemill_cell_flip_seconds_total", to=role) for role in Role}
        assert seconds["Flipping"] == pytest.approx(sum(flips.values()), abs=0.01)
        assert seconds["Training"] > 0
        assert seconds["Failed"] == 0
        assert [value(after, "tidemill_cell_flips_total", to=role) for role in Role] == [1, 1]
        phases = {dict(labels)["phase"]: s for (name, labels), s in after.items() if name == "tidemill_cell_flip_phase_seconds_total"}
        assert set(phases) == {"drain", "sleep", "join", "leave", "wake", "weights", "route"}
        assert sum(phases.values()) <= sum(flips.values())
        assert value(after, "tidemill_cell_weight_loads_total") == 2  # at first, and after it had slept


async def test_a_cell_in_rollout_is_idle_unless_it_has_a_call() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        before = cell.agent.ledger.idle.doing
        call = asyncio.create_task(cell.call(epoch=0))
        await cell.until(lambda: cell.agent.live_calls() == 1, "the call has begun")
        during = cell.agent.ledger.idle.doing
        assert value(await figures(cell), "tidemill_cell_live_calls") == 1
        cell.world.tokens.set()
        await call
        await cell.until(lambda: cell.agent.live_calls() == 0, "the call has ended")
        assert (before, during, cell.agent.ledger.idle.doing) == ("NoWork", "", "NoWork")
        assert value(await figures(cell), "tidemill_cell_calls_total") == 1


async def test_weights_that_are_not_those_published_are_counted() -> None:
    world = World()
    world.loads_digest = "wrong"
    async with living(world=world) as cell:
        await cell.until(lambda: cell.agent.ledger.load_failures["Checksum"] > 0, "they were refused")
        now = await figures(cell)
        assert value(now, "tidemill_cell_weight_load_failures_total", reason="Checksum") >= 1
        assert value(now, "tidemill_cell_phase_failures_total") >= 1
        assert value(now, "tidemill_cell_weight_loads_total") == 0
        world.loads_digest = ""
        await cell.ready(ROLLOUT, 0)


async def test_a_cell_whose_child_was_given_up_has_failed() -> None:
    async with living() as cell:
        await cell.ready(ROLLOUT, 0)
        cell.engine.down(Health.FAILED)
        await cell.state_when(lambda state: state.phase is CellPhase.FAILED, "failed")
        assert value(await figures(cell), "tidemill_cell_role", role="Failed") == 1
        cell.engine.up()


def test_a_newer_epoch_of_the_same_role_is_no_flip() -> None:
    acknowledged = Acknowledged(ROLLOUT, 1)
    assert role_now(RoleOrder(ROLLOUT, 3), acknowledged, failed=False) == "Rollout"
    assert role_now(RoleOrder(TRAINING, 2), acknowledged, failed=False) == "Flipping"
    assert role_now(RoleOrder(TRAINING, 2), None, failed=False) == role_now(None, None, failed=False) == "Starting"
    assert role_now(RoleOrder(TRAINING, 2), acknowledged, failed=True) == "Failed"


def test_idle_time_has_a_cause() -> None:
    serving = Standing(engine=Engine.AWAKE, weights=Weights(1, "d"))
    assert idle_cause("Rollout", ROLLOUT, None, serving, serves=True) == ""
    assert idle_cause("Rollout", ROLLOUT, None, serving, serves=False) == "NoWork"
    assert idle_cause("Rollout", ROLLOUT, Phase.ROUTE, serving, serves=False) == "NoWork"
    assert idle_cause("Rollout", ROLLOUT, Phase.WEIGHTS, serving, serves=True) == "WaitingForWeights"
    assert idle_cause("Rollout", ROLLOUT, None, replace(serving, weights=None), serves=False) == "WaitingForWeights"
    assert idle_cause("Rollout", ROLLOUT, None, replace(serving, engine=Engine.DOWN), serves=False) == "Starting"
    assert idle_cause("Flipping", TRAINING, Phase.DRAIN, serving, serves=True) == "Draining"
    assert idle_cause("Flipping", TRAINING, Phase.SLEEP, serving, serves=False) == "Flipping"
    assert idle_cause("Flipping", ROLLOUT, Phase.WAKE, serving, serves=False) == "Flipping"
    assert idle_cause("Training", TRAINING, None, serving, serves=False) == "", "its trainer knows"
    causes = set(catalogue.IDLE_SECONDS.values["cause"])
    assert {
        idle_cause(role, to, doing, s, serves=False)
        for role in catalogue.ROLE.values["role"]
        for to in Role
        for doing in (*Phase, None)
        for s in (serving, Standing())
    } - {""} <= causes


def test_a_new_ledger_counts_the_start() -> None:
    now = [0.0]
    ledger = Ledger(lambda: now[0])
    now[0] = 3.0
    assert ledger.roles.seconds() == ledger.idle.seconds() == {"Starting": 3.0}


async def test_the_engines_own_metrics_are_passed_on_as_they_are() -> None:
    asked = []

    async def metrics(request: web.Request) -> web.Response:
        asked.append(request.headers["Accept"])
        return web.Response(text="vllm:num_requests_running 3\n", content_type="text/plain")

    engine = web.Application()
    engine.router.add_get("/metrics", metrics)
    runner = await serve(engine, "127.0.0.1", 0)
    async with aiohttp.ClientSession() as session, living() as cell:
        proxy = Proxy(f"http://127.0.0.1:{runner.addresses[0][1]}", TOKEN, session, lambda epoch: "")
        front = web.Application()
        front.router.add_get("/engine/metrics", proxy.metrics)
        passing = await serve(front, "127.0.0.1", 0)
        async with session.get(f"http://127.0.0.1:{passing.addresses[0][1]}/engine/metrics", headers={"Accept": OPENMETRICS}) as answer:
            assert (answer.status, await answer.text()) == (200, "vllm:num_requests_running 3\n")
        async with session.get(cell.client.base_url + "/engine/metrics") as answer:  # of a scripted engine, which has none
            assert answer.status == 404
        await passing.cleanup()
    await runner.cleanup()
    assert asked == [OPENMETRICS]


SPINS = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'while True: pass']); time.sleep(60)"


async def test_a_childs_figures_are_those_of_everything_below_it(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        child = Child(Program("engine", (sys.executable,), {}, tmp_path / "log", ""), session, TOKEN)
        registry = registry_of_follower("tiny", "cell-1", 1, (child,))
        assert "child_cpu_seconds_total{" not in registry.page()[0].decode()
        group = await ProcessGroup.start((sys.executable, "-c", SPINS), {}, (), tmp_path / "log")
        try:
            child.pid, child.incarnation = group.pid, "first"
            async with asyncio.timeout(20):
                while (now := usage(group.pid)) is None or now.cpu_seconds < 0.3:
                    await asyncio.sleep(0.02)
            told = series(registry.page(OPENMETRICS)[0].decode())
            assert value(told, "tidemill_cell_child_cpu_seconds_total", child="engine", rank="1") >= 0.3
            assert value(told, "tidemill_cell_child_memory_bytes", child="engine") > 10e6
            assert undeclared(registry.page(OPENMETRICS)[0].decode(), "cell") == []
        finally:
            await group.end(0.1)
        assert usage(group.pid) is None
        assert "child_cpu_seconds_total{" not in registry.page()[0].decode()

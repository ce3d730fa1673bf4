"""Harnesses that hang up and retry, conductors that are away, disks that are full, gateways that are killed."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from tests.ports import free_port
from tests.rollout.gateway.world import TOKEN, ScriptedConductor, ScriptedEngine, World, model_folder, serving, until, world
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import Closed, Drain, GatewayClient, OpenExecution, Route
from tidemill.wire.http import Refused, Unreachable
from tidemill_rollout.gateway.executions import FORGOTTEN_SECONDS

BODY = {"messages": [{"role": "user", "content": "go"}]}


async def hang_up(w: World, body: dict = BODY) -> None:
    """Ask, and close the connection when the engine is in mid-answer."""
    engine = w.engines["cell-0"]
    engine.hold_after = 2
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.post(f"{w.url}/x/e1/v1/chat/completions", json=body, headers={"x-api-key": "key-of-e1"}))
        await asyncio.wait_for(engine.holding.wait(), 10)
        asked.cancel()
        await asyncio.wait({asked})


async def test_a_harness_that_hangs_up_does_not_lose_its_turn_and_its_retry_gets_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await hang_up(w)
        w.engines["cell-0"].go.set()
        await until(lambda: len(w.turns) == 1)
        assert await w.ask("go") == "hello"
        assert len(w.engines["cell-0"].requests) == 1
        assert (await w.state()).attached_retries == 1
        assert await w.ask("go") == "hello"  # the first was delivered now: this is a new call
        assert len(w.engines["cell-0"].requests) == 2


async def test_a_retry_attaches_to_the_generation_that_is_under_way_also_when_it_is_no_longer_streamed(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await hang_up(w, {**BODY, "stream": True})
        retries = [asyncio.create_task(w.ask("go")) for _ in range(3)]
        await until(lambda: w.now.gateway.state().attached_retries == 3)
        w.engines["cell-0"].go.set()
        assert await asyncio.gather(*retries) == ["hello"] * 3
        assert len(w.engines["cell-0"].requests) == 1
        await w.close()
        assert len(w.turns) == 1


async def test_an_undelivered_answer_survives_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await hang_up(w)
        w.conductor.down = True
        w.engines["cell-0"].go.set()
        await until(lambda: w.now.gateway.state().calls == 1)
        async with w.gateway():  # a second one on the same journal: what a restarted one finds
            w.conductor.down = False
            state = await w.state()
            assert (state.calls, state.routes) == (1, {"cell-0": 1})
            assert await w.ask("go") == "hello"
            assert len(w.engines["cell-0"].requests) == 1
            await until(lambda: len(w.turns) == 1)
            await w.ask("more", before=({"role": "user", "content": "go"}, {"role": "assistant", "content": "hello"}))
            await until(lambda: len(w.turns) == 2)
            assert w.turns[1].parent == w.turns[0].id


async def test_a_restarted_gateway_still_refuses_older_epochs(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.client.drain("cell-0", Drain(epoch=7))
        await w.now.journal.flush()
        async with w.gateway():
            with pytest.raises(Refused):
                await w.route(epoch=6)


async def test_close_delivers_every_turn_before_it_answers(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.conductor.down = True
        for n in range(5):
            await w.ask(f"{n}")
        closing = asyncio.create_task(w.close())
        asked = w.conductor.asked
        await until(lambda: w.conductor.asked > asked + 1)
        assert not closing.done()
        w.conductor.down = False
        assert await closing == Closed("e1", 5)
        assert len(w.turns) == 5
        assert await w.close() == Closed("e1", 5)  # again
        assert w.now.journal.replay().turns == []  # the journal does not grow with the job


async def test_close_cancels_what_is_under_way_and_the_key_is_dead(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        engine = w.engines["cell-0"]
        engine.hold_after = 2
        asked = asyncio.create_task(w.session.post(f"{w.url}/x/e1/v1/chat/completions", json=BODY, headers={"x-api-key": "key-of-e1"}))
        await asyncio.wait_for(engine.holding.wait(), 10)
        assert await w.close() == Closed("e1", 0)
        assert (await asked).status == 403
        await until(lambda: len(engine.left) == 1)
        async with w.post("/x/e1/v1/chat/completions", BODY, key="key-of-e1") as response:
            assert response.status == 404


async def test_an_execution_that_nobody_closes_is_closed_long_after_its_deadline_and_its_turns_are_delivered(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        opened = w.opened("late")
        await w.client.open(opened)
        await w.ask("go", "late")
        await w.now.gateway.close_forgotten()
        assert w.now.gateway.knows("late")
        w.now.gateway._clock = lambda: opened.deadline + FORGOTTEN_SECONDS + 1
        await w.now.gateway.close_forgotten()
        assert not w.now.gateway.knows("late")
        assert [turn.execution for turn in w.turns] == ["late"]
        assert await w.close("late") == Closed("late", 1)
        assert w.now.journal.replay().turns == []


async def test_a_new_attempt_takes_the_place_of_the_old_and_old_orders_have_no_effect(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.ask("go")
        await w.open(attempt=2, key="another")
        async with w.post("/x/e1/v1/chat/completions", BODY, key="key-of-e1") as response:
            assert response.status == 401
        with pytest.raises(Refused):
            await w.close(attempt=1)
        with pytest.raises(Refused):
            await w.open(attempt=1)
        await w.open(attempt=2, key="another")  # again
        assert (await w.close(attempt=2)).turns == 0
        with pytest.raises(Refused, match="attempt 2 is over"):
            await w.open(attempt=2)


async def test_a_full_disk_holds_turns_back_and_loses_none(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        [pages] = w.now.journal.connection.execute("PRAGMA page_count").fetchone()
        w.now.journal.connection.execute(f"PRAGMA max_page_count = {pages}")
        asked = asyncio.create_task(w.ask("x" * 4000))  # more than what is free in the last page
        await until(lambda: "full" in w.now.gateway.state().condition)
        assert not asked.done()
        assert not w.turns
        w.now.journal.connection.execute("PRAGMA max_page_count = 1000000")
        assert await asked == "hello"
        assert (await w.state()).condition == ""
        await w.close()
        assert len(w.turns) == 1


async def test_a_gateway_killed_and_restarted_gives_the_answer_it_had(tmp_path: Path) -> None:
    """The real process, and kill -9."""
    model = model_folder(tmp_path / "model")
    engine, conductor = ScriptedEngine("cell-0", lambda prompt: "hello"), ScriptedConductor()
    conductor.down = True
    async with serving(engine.application()) as engine.url, serving(conductor.application()) as conductor_url, aiohttp.ClientSession() as session:
        port = free_port()
        arguments = ["--workdir", str(tmp_path), "--port", str(port), "--socket", str(tmp_path / "gateway.sock"), "--conductor-url", conductor_url]
        command = [sys.executable, "-m", "tidemill_rollout.gateway", "--manifest", str(_manifest(tmp_path)), "--model", str(model), *arguments]
        client = GatewayClient(f"http://127.0.0.1:{port}", TOKEN, session)
        process = _started(command)
        try:
            await _serves(client)
            await client.open(OpenExecution("e1", 1, "secret", "react", Sampling(max_tokens=50), time.time() + 100))
            await client.put_route(Route("cell-0", 1, 0, engine.url, capacity=4))
            engine.hold_after = 2
            url, headers = f"http://127.0.0.1:{port}/x/e1/v1/chat/completions", {"x-api-key": "secret"}
            asked = asyncio.create_task(session.post(url, json=BODY, headers=headers))
            await asyncio.wait_for(engine.holding.wait(), 10)
            process.send_signal(signal.SIGSTOP)  # so that the answer reaches the journal, but not the harness
            asked.cancel()
            await asyncio.wait({asked})
            engine.go.set()
            process.send_signal(signal.SIGCONT)
            await until(lambda: conductor.asked > 0)
            process.kill()
            process.wait()
            process = _started(command)
            await _serves(client)
            async with session.post(url, json=BODY, headers=headers) as response:
                assert (await response.json())["choices"][0]["message"]["content"] == "hello"
            assert len(engine.requests) == 1
            conductor.down = False
            assert await client.close("e1", 1) == Closed("e1", 1)
            assert len(conductor.turns) == 1
            process.terminate()
            assert process.wait(timeout=5) == 0
        finally:
            process.kill()
            process.wait()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [
            sys.executable,
            "-m",
            "tidemill_rollout.gateway",
            "--manifest",
            str(_manifest(tmp_path)),
            "--model",
            str(model_folder(tmp_path / "m")),
        ]
        command += ["--workdir", str(tmp_path), "--port", port, "--conductor-url", "http://127.0.0.1:1"]
        ended = subprocess.run(command, env={**os.environ, "TIDEMILL_TOKEN": TOKEN}, capture_output=True, text=True, timeout=30)
        assert ended.returncode == 2
        assert port in ended.stderr
        assert "Traceback" not in ended.stderr


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, "TIDEMILL_TOKEN": TOKEN})


async def _serves(client: GatewayClient) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await client.state()
            except Unreachable:
                await asyncio.sleep(0.05)
            else:
                return


def _manifest(folder: Path) -> Path:
    path = folder / "job.yaml"
    path.write_text(
        "apiVersion: tidemill.dev/v1alpha1\nkind: RLJob\nmetadata: {name: test}\nspec:\n"
        "  model: {source: 'path:/m', dtype: float32, maxLength: 512, tools: Text}\n  cells: {count: 2, capacity: 4}\n"
        "  schedule: {groupsPerStep: 2, rolloutsPerGroup: 2, steps: 1}\n  sampling: {maxTokens: 16}\n  tasks: {source: 'path:tasks'}\n"
    )
    return path

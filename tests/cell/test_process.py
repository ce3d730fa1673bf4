"""The agent as a process, with stand-ins for engine and trainer that are processes too."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.ports import free_port
from tidemill.wire.cell import CellClient, CellState, Role
from tidemill.wire.http import Unreachable

WHOLE = Path(__file__).parents[1] / "tidemill" / "api" / "whole.yaml"
TOKEN = "token"
DEADLINE_SECONDS = 30.0

STAND_IN = """
import http.server, signal, subprocess, sys, json
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the hard case
subprocess.Popen([sys.executable, "-S", "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"])
STATE = {"cell": "cell-1", "incarnation": "i", "training": False, "epoch": 0, "step": 0}
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(STATE).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@dataclass
class Running:
    process: asyncio.subprocess.Process
    client: CellClient
    workdir: Path

    async def state_when_children_are_up(self) -> CellState:
        end = time.monotonic() + DEADLINE_SECONDS
        while True:
            with contextlib.suppress(Unreachable):
                state = await self.client.state(wait_seconds=0.0)
                if state.trainer_url and state.engine_incarnation:
                    return state
            assert time.monotonic() < end, (self.workdir / "agent.log").read_text()
            await asyncio.sleep(0.05)

    def family(self) -> list[psutil.Process]:
        members: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return members


@contextlib.asynccontextmanager
async def agent_process(folder: Path, *more: str) -> AsyncIterator[Running]:
    for package in ("tidemill_rollout", "tidemill_rollout/engine", "tidemill_trainer"):
        (folder / "stand-ins" / package).mkdir(parents=True)
        (folder / "stand-ins" / package / "__init__.py").touch()
        (folder / "stand-ins" / package / "__main__.py").write_text(STAND_IN)
    agent_port, engine_port, trainer_port, nobody = (free_port() for _ in range(4))
    away = f"http://127.0.0.1:{nobody}"
    arguments = {"manifest": WHOLE, "workdir": folder, "cell": "cell-1", "port": agent_port, "engine-port": engine_port, "trainer-port": trainer_port}
    arguments |= {"conductor-url": away, "gateway-url": away, "model": folder}
    command = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    environment = dict(os.environ) | {"TIDEMILL_TOKEN": TOKEN, "PYTHONPATH": str(folder / "stand-ins")}
    with (folder / "agent.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tidemill_cell", *command, *more, env=environment, stderr=log)
    async with aiohttp.ClientSession() as session:
        try:
            yield Running(process, CellClient(f"http://127.0.0.1:{agent_port}", TOKEN, session), folder)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_term_ends_the_agent_and_all_it_started_within_five_seconds(tmp_path: Path) -> None:
    async with agent_process(tmp_path) as agent:
        state = await agent.state_when_children_are_up()
        assert (state.role, state.epoch) == (Role.ROLLOUT, -1)
        family = agent.family()
        assert len(family) == 4  # two children, and one of each
        began = time.monotonic()
        agent.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(agent.process.wait(), DEADLINE_SECONDS) == 0
        assert time.monotonic() - began < 5.0
        assert not [p for p in family if p.is_running()]  # no zombie either


async def test_an_agent_in_a_pod_listens_everywhere_and_says_under_what_address_others_reach_it_and_its_trainer(tmp_path: Path) -> None:
    everywhere = ("--host", "0.0.0.0", "--advertise", "http://10.0.0.7:7002", "--trainer-advertise", "http://10.0.0.7:7004")
    async with agent_process(tmp_path, *everywhere) as agent:
        state = await agent.state_when_children_are_up()
        assert (state.url, state.trainer_url) == ("http://10.0.0.7:7002", "http://10.0.0.7:7004")
        trainer = next(p for p in psutil.Process(agent.process.pid).children() if "tidemill_trainer" in p.cmdline())
        assert trainer.cmdline()[-4:] == ["--host", "0.0.0.0", "--advertise", "10.0.0.7"]
        began = time.monotonic()
        agent.process.send_signal(signal.SIGTERM)  # nothing was ever granted, so there is nothing to hand over
        assert await asyncio.wait_for(agent.process.wait(), DEADLINE_SECONDS) == 0
        assert time.monotonic() - began < 8.0


async def test_the_agent_of_another_node_has_an_engine_and_no_trainer_and_ends_at_the_second_signal(tmp_path: Path) -> None:
    async with agent_process(tmp_path, "--rank", "1", "--ranks", "2", "--leader", "http://127.0.0.1:9", "--grace-seconds", "60") as agent:
        end = time.monotonic() + DEADLINE_SECONDS
        forked = psutil.Process(agent.process.pid).children
        while not (children := [child for child in forked() if child.cmdline()[-1:] == ["127.0.0.1"]]):  # until then it is a copy of the agent
            assert time.monotonic() < end
            await asyncio.sleep(0.05)
        [engine] = children
        assert engine.cmdline()[-6:] == ["--rank", "1", "--ranks", "2", "--leader", "127.0.0.1"]
        agent.process.send_signal(signal.SIGTERM)  # rank 0 is not there to be told
        await asyncio.sleep(0.5)
        assert agent.process.returncode is None
        agent.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(agent.process.wait(), DEADLINE_SECONDS) == 0


async def test_an_agent_that_is_killed_takes_its_children_with_it(tmp_path: Path) -> None:
    async with agent_process(tmp_path) as agent:
        await agent.state_when_children_are_up()
        children = psutil.Process(agent.process.pid).children()
        everybody = agent.family()
        agent.process.kill()
        await agent.process.wait()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, children, DEADLINE_SECONDS)
        assert len(gone) == 2
        assert not alive
        for stray in everybody:  # grandchildren of a killed agent are their parents' affair; these stand-ins do not care
            with contextlib.suppress(psutil.NoSuchProcess):
                stray.kill()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--manifest", "/nonexistent.yaml"], "cannot read '/nonexistent.yaml'"),
        (["--cell", "core"], "cells are called cell-0"),
        (["--trainer-port", "0"], "--trainer-port is missing"),
        (["--cores", "all"], "argument --cores"),
        (["--host", "0.0.0.0"], "an address that nobody can call; say with --advertise"),
        (["--advertise", "10.0.0.7:7002"], "is not a URL such as http://10.0.0.7:7002"),
        (["--rank", "2", "--ranks", "2"], "ranks count from 0, and all but rank 0 need --leader"),
    ],
)
async def test_wrong_arguments_are_said_before_anything_is_started(tmp_path: Path, arguments: list[str], said: str) -> None:
    async with agent_process(tmp_path, *arguments) as agent:
        assert await asyncio.wait_for(agent.process.wait(), DEADLINE_SECONDS) == 2
        assert said in (tmp_path / "agent.log").read_text()


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with agent_process(tmp_path, "--port", str(port)) as agent:
            assert await asyncio.wait_for(agent.process.wait(), DEADLINE_SECONDS) == 2
            line = json.loads((tmp_path / "agent.log").read_text().splitlines()[-1])
            assert f"agent port {port} cannot be used" in line["event"]

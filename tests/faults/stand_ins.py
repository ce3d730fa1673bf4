"""A job whose conductor, gateway, sandboxes and evaluators are the real ones, as processes of their own. Its cells are stand-ins: an engine
that samples what it is told, a trainer that adds ids instead of gradients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from tests.ports import free_port
from tests.rollout.conductor.world import Agent, Trainer
from tests.rollout.gateway.world import TOKEN, ScriptedEngine, model_folder, serving
from tidemill.api import load_rljob
from tidemill.local.parent import die_with_parent
from tidemill.local.processes import tail
from tidemill.wire.conductor import ConductorClient, ExecutionView, JobPhase, Tide
from tidemill.wire.gateway import Gateways, Route
from tidemill.wire.http import Unreachable, serve
from tidemill_rollout.tasks.source import VERIFIER_SECONDS

CAPACITY = 16
CELLS = ("cell-0", "cell-1")
ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)


def manifest(folder: Path, tasks: Path, changes: Mapping[str, Mapping[str, Any]]) -> Path:
    """A job of two cells whose harness is `python3 harness.py` of each task's folder; `changes` by section of the spec."""
    spec: dict[str, Any] = {
        "model": {"source": "path:/not/read", "dtype": "float32", "maxLength": 4096, "tools": "Text"},
        "cells": {"count": len(CELLS), "capacity": CAPACITY},
        "schedule": {"groupsPerStep": 1, "rolloutsPerGroup": 2, "stepsPerBurst": 1, "prefetchSteps": 0, "steps": 1},
        "sampling": {"maxTokens": 64},
        "harness": {"preset": "generic", "command": ["python3", "harness.py"]},
        "tasks": {"source": f"path:{tasks}"},
        "timeouts": {"callSeconds": 60, "executionSeconds": 60, "groupSeconds": 120},
    }
    for section, fields in changes.items():
        spec[section] = {**spec.get(section, {}), **fields}
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "tidemill.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "faults"}, "spec": spec}))
    return file


def task(folder: Path, harness: str, tests: str, *, seconds: float = 60.0, evaluator_seconds: float = VERIFIER_SECONDS) -> None:
    """A task whose harness is `harness`, a Python program, and whose evaluator is `tests`, a shell script; each with its time-out."""
    for part in ("tests", "environment"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text(f"[agent]\ntimeout_sec = {seconds}\n[verifier]\ntimeout_sec = {evaluator_seconds}\n")
    (folder / "instruction.md").write_text("Ask the model.\n")
    (folder / "environment" / "harness.py").write_text(harness)
    (folder / "tests" / "test.sh").write_text(tests)


@dataclass
class Job:
    """`folder` is the work folder as the processes see it, `seen` the same as the tests see it."""

    manifest: Path
    folder: Path
    seen: Path
    logs: Path
    session: aiohttp.ClientSession
    engine: ScriptedEngine
    enter: tuple[str, ...]  # what is put before every command
    gateway_ports: tuple[int, ...]
    conductor_port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conductor(self) -> ConductorClient:
        return ConductorClient(f"http://127.0.0.1:{self.conductor_port}", TOKEN, self.session)

    @property
    def gateway(self) -> Gateways:
        """All of them."""
        return Gateways(self.gateway_urls, TOKEN, self.session)

    @property
    def gateway_urls(self) -> tuple[str, ...]:
        return tuple(f"http://127.0.0.1:{port}" for port in self.gateway_ports)

    def start(self, name: str) -> None:
        """conductor, gateway (the one that sandboxes knock at), gateway-1, ..."""
        where: tuple[str, ...] = ("--manifest", str(self.manifest), "--workdir", str(self.folder), "--gateway-url", ",".join(self.gateway_urls))
        kind, _, number = name.partition("-")
        if kind == "conductor":
            where += ("--port", str(self.conductor_port), "--cores-shared")
        else:
            where += ("--port", str(self.gateway_ports[int(number or 0)]), "--number", number or "0")
            where += ("--conductor-url", self.conductor.base_url, "--model", str(self.manifest.parent / "model"))
            where += () if number else ("--socket", str(self.folder / "gateway.sock"))
        command = (*self.enter, sys.executable, "-m", f"tidemill_rollout.{kind}", *where)
        with self.log(name).open("ab") as log:
            environment = {**os.environ, "TIDEMILL_TOKEN": TOKEN}
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment, preexec_fn=die_with_parent)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    async def until(self, what: str, holds: Callable[[Tide], object], seconds: float = 60.0) -> Tide:
        """The first reading of the tide of which `holds` is true."""
        tide: Tide | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(Unreachable):
                        tide = await self.conductor.tide(-1, 0.0)
                        if holds(tide):
                            return tide
                    self._all_live()
                    await asyncio.sleep(0.05)
        except TimeoutError as cause:
            raise AssertionError(f"not within {seconds:g} s: {what}; the last reading was {tide}\n{self._said()}") from cause

    async def executions(self) -> tuple[ExecutionView, ...]:
        """None while the conductor is away."""
        try:
            return await self.conductor.executions()
        except Unreachable:
            return ()

    def told(self, name: str, event: str) -> list[dict[str, str]]:
        """Lines of that process's log. The last may be cut short by a full disk."""
        found = []
        for line in self.log(name).read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                entry = msgspec.json.decode(line)
                if entry["event"] == event:
                    found.append(entry)
        return found

    def _all_live(self) -> None:
        for name, process in self.processes.items():
            assert process.poll() is None, f"the {name} ended with {process.returncode}:\n{self._said()}"

    def _said(self) -> str:
        return "\n".join(f"--- {name}\n{tail(self.log(name))}" for name in self.processes)


@contextlib.asynccontextmanager
async def running(file: Path, folder: Path, say: Callable[[str], str], seen: Path | None = None, enter: tuple[str, ...] = ()) -> AsyncIterator[Job]:
    """The job of the manifest `file`, in `folder`. Afterwards nothing of it runs."""
    model_folder(file.parent / "model")
    engine = ScriptedEngine("cell-0", say)
    async with contextlib.AsyncExitStack() as stack:
        engine.url = await stack.enter_async_context(serving(engine.application()))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        seen = seen or folder
        ports = tuple(free_port() for _ in range(load_rljob(file).spec.gateway.replicas))
        job = Job(file, folder, seen, seen / "logs", session, engine, enter, ports)
        job.logs.mkdir(parents=True)
        for name in ("gateway", *(f"gateway-{number}" for number in range(1, len(ports))), "conductor"):
            job.start(name)
        tasks: list[asyncio.Task[None]] = []
        core: Trainer | None = None
        for ordinal, cell in enumerate(CELLS):
            trainer = Trainer(cell, job.conductor, core)
            core = core or trainer
            agent = Agent(cell, ordinal, CAPACITY, job.conductor, trainer)
            runner = await serve(agent.application(), "127.0.0.1", port := free_port())
            stack.push_async_callback(runner.cleanup)
            agent.state = msgspec.structs.replace(agent.state, url=f"http://127.0.0.1:{port}", trainer_url=f"http://trainer-of-{cell}")
            tasks += [asyncio.create_task(agent.run()), asyncio.create_task(trainer.run())]
        tasks.append(asyncio.create_task(_keep_routed(job)))
        try:
            yield job
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            engine.go.set()
            for process in job.processes.values():
                process.terminate()
            for process in job.processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()
                process.wait()


async def _keep_routed(job: Job) -> None:
    """As agents do: again and again, for a gateway that was restarted."""
    while True:
        with contextlib.suppress(Unreachable):
            for ordinal, cell in enumerate(CELLS):
                await job.gateway.put_route(Route(cell, 1, 0, job.engine.url, CAPACITY, ordinal))
        await asyncio.sleep(0.5)

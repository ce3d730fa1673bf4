"""One real agent program at work on a task: in the real jail, against the real gateway, with engines that sample what a script says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from tests.harnesses.proxy import Break, Proxy
from tests.harnesses.script import Script
from tests.rollout.gateway.world import CHATML_WITH_TOOLS, END, World, paths, serving, text_of, tokens_of
from tests.rollout.jobs import job
from tidemill.api.rljob import RLJob, Tools
from tidemill.local.programs import PROGRAMS, executable, install
from tidemill.trajectory.records import Turn
from tidemill_rollout.harness.presets import launch_in_image
from tidemill_rollout.sandbox.execution import LocalExecutions
from tidemill_rollout.tasks.source import Task, load_task

MAX_LENGTH = 400_000
"""Tokens are bytes here, and Claude Code's first prompt has 80,000 of them."""

MAX_TOKENS = 4096
SECONDS = 240.0


@dataclass
class Outcome:
    """What an agent did and what was kept of it."""

    exit_code: int
    said: str  # what the program printed, or its end
    work: Path
    turns: list[Turn]
    prompts: set[tuple[int, ...]]  # that engines were asked to continue
    script: Script
    attached: int  # retries that were given the answer under way
    asked: int  # calls that reached the proxy
    asked_by_harness: int  # of these, those that are not its relay's doing
    broken: int  # answers that it broke

    @property
    def tree(self) -> list[tuple[str, str, str]]:
        """Of each turn: what the turn before said, what this one says, and its class; sorted."""
        said = {turn.id: text_of(turn.sampled_ids).removesuffix("<|im_end|>") for turn in self.turns}
        return sorted((said.get(turn.parent, ""), said[turn.id], _class(turn)) for turn in self.turns)

    def check_tokens(self) -> None:
        """Every answer of the script is in the tree once, token by token, and every path is what an engine has continued."""
        assert self.script.unscripted == []
        assert sorted(tuple(turn.sampled_ids) for turn in self.turns) == sorted(tuple(tokens_of(answer)) for answer in self.script.answers)
        for turn in self.turns:
            path = paths(self.turns)[turn.id]
            assert tuple(path[: len(path) - turn.sampled]) in self.prompts
            assert path.count(END) == text_of(path).count("<|im_end|>")


@dataclass(frozen=True)
class Setting:
    """How an agent is run."""

    preset: str
    instruction: str
    script: Script
    version: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    breaks: Callable[[int], Break | None] = lambda call: None
    in_image: bool = False
    max_length: int = MAX_LENGTH
    cells: int = 1
    pulse_seconds: float = 15.0


class Around(World):
    """Engines, a conductor, and a gateway that can be restarted."""

    def __init__(self, folder: Path, setting: Setting) -> None:
        super().__init__(folder, setting.script, setting.cells, Tools.NATIVE, CHATML_WITH_TOOLS, call_seconds=60.0)
        self.pulse_seconds = setting.pulse_seconds
        self.max_length = setting.max_length
        self._life = contextlib.AsyncExitStack()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Around]:
        async with contextlib.AsyncExitStack() as stack:
            for engine in self.engines.values():
                engine.url = await stack.enter_async_context(serving(engine.application()))
            self.conductor_url = await stack.enter_async_context(serving(self.conductor.application()))
            self.session = await stack.enter_async_context(aiohttp.ClientSession())
            await self._life.enter_async_context(self.gateway())
            try:
                await self.route()
                yield self
                for engine in self.engines.values():
                    engine.go.set()
            finally:
                await self._life.aclose()

    async def restart(self) -> None:
        await self._life.aclose()
        self._life = contextlib.AsyncExitStack()
        await self._life.enter_async_context(self.gateway())


async def work(setting: Setting, folder: Path, meanwhile: Callable[[Around], Awaitable[None]] | None = None) -> Outcome:
    """Run the agent to its end. `meanwhile` happens to what is around it."""
    manifest = job_of(setting)
    install(manifest.spec.harness, print)
    (folder / "world").mkdir()
    async with Around(folder / "world", setting).running() as around, asyncio.TaskGroup() as tasks:
        await around.open("x1", harness=setting.preset, max_tokens=MAX_TOKENS)
        proxy = Proxy(around.folder / "gateway.sock", setting.breaks)
        runner = _as_in_an_image if setting.in_image else _in_a_jail
        if meanwhile is not None:
            tasks.create_task(_happen(meanwhile, around))
        exit_code, said, place = await runner(manifest, proxy, task_of(setting, folder / "task"), folder)
        attached = (await around.state()).attached_retries
        await around.close("x1")
        prompts = {tuple(asked.token_ids) for engine in around.engines.values() for asked in engine.requests}
        return Outcome(exit_code, said, place, around.turns, prompts, setting.script, attached, proxy.calls, len(proxy.of_harness), proxy.broken)


async def _happen(meanwhile: Callable[[Around], Awaitable[None]], around: Around) -> None:
    await meanwhile(around)


def job_of(setting: Setting) -> RLJob:
    made = job(setting.preset, version=setting.version, env=dict(setting.environment))
    spec = made.spec
    model = spec.model.model_copy(update={"max_length": setting.max_length})
    sampling = spec.sampling.model_copy(update={"max_tokens": MAX_TOKENS})
    resources = spec.sandbox.resources.model_copy(update={"memory": "3Gi"})
    sandbox = spec.sandbox.model_copy(update={"resources": resources})
    return made.model_copy(update={"spec": spec.model_copy(update={"model": model, "sampling": sampling, "sandbox": sandbox})})


def task_of(setting: Setting, folder: Path) -> Task:
    for part in ("tests", "environment"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").touch()
    (folder / "instruction.md").write_text(setting.instruction)
    (folder / "environment" / "notes.txt").write_text("first line\n")
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return load_task(folder)


async def _in_a_jail(manifest: RLJob, proxy: Proxy, task: Task, folder: Path) -> tuple[int, str, Path]:
    async with proxy.on_socket(folder / "proxy.sock") as socket:
        executions = LocalExecutions(manifest, folder / "job", socket)
        await asyncio.to_thread(executions.check)
        end = await executions.run("x1", 1, task, "key-of-x1", SECONDS)
        await executions.stop_all()
    place = folder / "job" / "executions" / "x1" / "1"
    return end.exit_code, (place / "harness.log").read_text(errors="replace"), place / "work"


async def _as_in_an_image(manifest: RLJob, proxy: Proxy, task: Task, folder: Path) -> tuple[int, str, Path]:
    """As a pod starts it, on a machine whose PATH has the programs. No jail, and no relay: the program speaks with the proxy by TCP."""
    place = folder / "work"
    shutil.copytree(task.files, place)
    (folder / "home").mkdir()
    instruction = task.files.parent / "instruction.md"
    program = PROGRAMS.get(manifest.spec.harness.preset)
    programs = executable(manifest.spec.harness).parent if program else Path(sys.prefix) / "bin"
    async with proxy.on_port() as url:
        started = launch_in_image(manifest, task, f"{url}/x/x1", "key-of-x1", instruction)
        image = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder / "home"), "LANG": "C.UTF-8", "TERM": "dumb"}
        environment = {**image, **started.environment, "TIDEMILL_INSTRUCTION_FILE": str(instruction)}

        def outside(text: str) -> str:
            return text.replace("/logs/", f"{folder}/logs/")

        process = await asyncio.create_subprocess_exec(
            *map(outside, started.command),
            cwd=place,
            env={name: outside(value) for name, value in environment.items()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(SECONDS):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    return process.returncode or 0, said.decode(errors="replace"), place


def _class(turn: Turn) -> str:
    return ("sub-agent" if turn.agent else "main") + ("-summary" if turn.summary else "")

"""Sandboxes as pods with the real gateway, the conductor's real routes and a kubelet that runs containers here. API server and model are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tests.rollout.gateway.world import TOKEN, ScriptedEngine, model_folder, serving
from tests.rollout.sandbox.kubelet import RunningPod
from tidemill.api.rljob import RLJob, Tools
from tidemill.trajectory.records import Turn
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import GatewayClient, OpenExecution, Route, Turns
from tidemill.wire.http import application
from tidemill_rollout.conductor.pods import PodSandboxes
from tidemill_rollout.gateway.process import Running, Settings, running
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.sandbox.manifest import PodSettings
from tidemill_rollout.sandbox.pods import ApiError, Pods
from tidemill_rollout.sandbox.process import Limits
from tidemill_rollout.tasks.source import Task

Pod = dict[str, Any]


class OwnPods(Pods):
    """An API server's pods in a dict, each run at once."""

    def __init__(self, folder: Path) -> None:
        self.now: dict[str, Pod] = {}
        self.made: list[Pod] = []
        self.folders: dict[str, Path] = {}
        self._folder = folder
        self._numbers = itertools.count(1)
        self._events: list[tuple[str, Pod]] = []
        self._changed = asyncio.Event()
        self._running: dict[str, tuple[RunningPod, asyncio.Task[None]]] = {}

    async def create(self, pod: Pod) -> None:
        name = pod["metadata"]["name"]
        if name in self.now:
            raise ApiError(409, "AlreadyExists", name)
        number = next(self._numbers)
        made = pod | {"metadata": pod["metadata"] | {"uid": f"uid-{number}"}}
        self.made.append(made)
        self.folders[name] = self._folder / f"{name}-{number}"
        kubelet = RunningPod(made, self.folders[name], lambda status: self._note(name, status))
        self._tell("ADDED", made)
        self._running[name] = kubelet, asyncio.create_task(kubelet.run())

    async def close(self) -> None:
        pass

    async def get(self, name: str) -> Pod | None:
        return self.now.get(name)

    async def delete(self, name: str, uid: str = "", grace_seconds: int | None = None) -> None:
        if name in self._running:
            kubelet, task = self._running.pop(name)
            await kubelet.stop()
            task.cancel()
            await asyncio.wait({task})
            self._tell("DELETED", self.now[name])

    async def list(self) -> tuple[dict[str, Pod], str]:
        return dict(self.now), str(len(self._events))

    async def changes(self, version: str) -> AsyncIterator[tuple[str, Pod]]:
        place = int(version)
        while True:
            while place < len(self._events):
                yield self._events[place]
                place += 1
            await self._changed.wait()

    async def _note(self, name: str, status: dict[str, Any]) -> None:
        self._tell("MODIFIED", self.now[name] | {"status": status})

    def _tell(self, kind: str, pod: Pod) -> None:
        name = pod["metadata"]["name"]
        pod = pod | {"metadata": pod["metadata"] | {"resourceVersion": str(len(self._events) + 1)}}
        if kind == "DELETED":
            del self.now[name]
        else:
            self.now[name] = pod
        self._events.append((kind, pod))
        self._changed.set()
        self._changed = asyncio.Event()


class PodWorld[P: Pods]:
    def __init__(self, folder: Path, pods: P) -> None:
        self.folder = folder
        self.pods = pods
        self.turns: dict[str, Turn] = {}
        self.away = False  # the conductor answers nothing
        self.refused = 0  # calls, because of that
        self.sandboxes: PodSandboxes
        self.gateway: GatewayClient
        self.now: Running
        self.session: aiohttp.ClientSession

    def path(self, name: str, execution: str = "e-1", attempt: int = 1) -> Path:
        return self.folder / "executions" / execution / str(attempt) / name

    def opened(self, execution: str = "e-1", attempt: int = 1) -> OpenExecution:
        return OpenExecution(execution, attempt, f"key-of-{execution}-{attempt}", "react", Sampling(max_tokens=64), deadline=2e10)

    async def open(self, execution: str = "e-1", attempt: int = 1) -> str:
        opened = self.opened(execution, attempt)
        await self.gateway.open(opened)
        return opened.key

    def limit(self, **limits: int) -> None:
        self.sandboxes.limits = Limits(**limits)

    def conductor(self) -> web.Application:
        @web.middleware
        async def away(request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
            if self.away:
                self.refused += 1
                return web.Response(status=503)
            answer: web.StreamResponse = await handler(request)
            return answer

        async def take(request: web.Request) -> web.Response:
            told = msgspec.json.decode(await request.read(), type=Turns)
            self.turns |= {turn.id: turn for turn in told.turns}
            return web.Response(text="{}")

        app = application(TOKEN)
        app.middlewares.append(away)
        app.router.add_post("/v1/executions/{execution}/turns", take)
        return app


def pod_world(
    folder: Path, job: RLJob, *tasks: Task, say: Callable[[str], str] = lambda prompt: "hello"
) -> contextlib.AbstractAsyncContextManager[PodWorld[OwnPods]]:
    """Without an API server."""
    return world_around(OwnPods(folder / "node"), folder, job, *tasks, say=say)


@contextlib.asynccontextmanager
async def world_around[P: Pods](
    pods: P, folder: Path, job: RLJob, *tasks: Task, say: Callable[[str], str] = lambda prompt: "hello", namespace: str = "ns", **settings: Any
) -> AsyncIterator[PodWorld[P]]:
    world = PodWorld(folder, pods)
    async with contextlib.AsyncExitStack() as stack:
        engine = ScriptedEngine("cell-0", say)
        engine.url = await stack.enter_async_context(serving(engine.application()))
        world.session = await stack.enter_async_context(aiohttp.ClientSession())
        group = await stack.enter_async_context(asyncio.TaskGroup())
        app, listener = world.conductor(), socket.create_server(("127.0.0.1", 0))  # the gateway is told where before anybody serves there
        conductor_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        renderer = Renderer(model_folder(folder / "model"), Tools.TEXT)
        where = Settings(folder / "gateway-0.db", "127.0.0.1", 0, None, conductor_url, TOKEN, max_length=4096, call_seconds=30.0)
        world.now = await stack.enter_async_context(running(where, renderer))
        world.gateway = GatewayClient(world.now.url, TOKEN, world.session)
        await world.gateway.put_route(Route("cell-0", 1, 0, engine.url, capacity=8))
        config = PodSettings(namespace, "small", "product", world.now.url, **settings)
        world.sandboxes = PodSandboxes(job, folder, {task.name: task for task in tasks}, config, pods=world.pods)
        world.sandboxes.check()
        app.add_routes(await world.sandboxes.begin(world.gateway, group))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listener).start()
        try:
            yield world
        finally:
            await world.sandboxes.stop_all()

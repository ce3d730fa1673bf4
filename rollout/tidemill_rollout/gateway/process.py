"""The gateway as a process: its parts put together, started, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from tidemill.wire.conductor import ConductorClient
from tidemill.wire.trust import Credential
from tidemill_rollout.gateway.delivery import Delivery
from tidemill_rollout.gateway.executions import Gateway
from tidemill_rollout.gateway.generation import Generator
from tidemill_rollout.gateway.journal import Journal
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.routing import Routes
from tidemill_rollout.gateway.sandboxes import SandboxFiles
from tidemill_rollout.gateway.server import PULSE_SECONDS, HarnessSide, full_application, sandbox_application


@dataclass(frozen=True, slots=True)
class Settings:
    journal: Path
    host: str
    port: int
    socket: Path | None
    conductor_url: str
    credential: Credential | str
    max_length: int
    call_seconds: float
    pulse_seconds: float = PULSE_SECONDS
    journal_retry_seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Running:
    gateway: Gateway
    url: str
    journal: Journal
    failure: asyncio.Task[None]  # ends only when the journal's writer dies, and with it the process


@contextlib.asynccontextmanager
async def running(settings: Settings, renderer: Renderer) -> AsyncIterator[Running]:
    """A gateway that serves until the block ends."""
    journal = Journal(settings.journal, settings.journal_retry_seconds)
    writer = asyncio.create_task(journal.run())
    runners: list[web.AppRunner] = []
    # One connection a live call: neither the number of all nor that to one cell is limited here.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        conductor = ConductorClient(settings.conductor_url, settings.credential, session)
        delivery = Delivery(conductor, journal.acknowledged)
        routes = Routes()
        generator = Generator(routes, session, settings.credential, renderer.end_ids, renderer.text, idle_seconds=settings.call_seconds / 2)
        gateway = Gateway(renderer, generator, routes, journal, delivery, max_length=settings.max_length, call_seconds=settings.call_seconds)
        try:
            gateway.replay()
            files = SandboxFiles(settings.conductor_url, settings.credential, session)
            harnesses = HarnessSide(gateway, settings.pulse_seconds, files)
            tcp = await _started(runners, full_application(gateway, harnesses, settings.credential))
            site = web.TCPSite(tcp, settings.host, settings.port)
            await site.start()
            if settings.socket is not None:
                await web.UnixSite(await _started(runners, sandbox_application(harnesses)), str(settings.socket)).start()
            host, port = tcp.addresses[0][:2]
            yield Running(gateway, f"http://{host}:{port}", journal, writer)
        finally:
            gateway.stop()
            for runner in runners:
                await runner.cleanup()
            delivery.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await journal.flush()
            writer.cancel()
            await asyncio.wait({writer})
            journal.close()


async def _started(runners: list[web.AppRunner], app: web.Application) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    runners.append(runner)
    await runner.setup()
    return runner

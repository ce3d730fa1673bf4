"""The gateway as a process: its parts put together, started, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from tidemill.telemetry.registry import Registry
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.trust import Credential
from tidemill_rollout.gateway.delivery import Delivery
from tidemill_rollout.gateway.executions import Gateway
from tidemill_rollout.gateway.generation import Generator
from tidemill_rollout.gateway.internal import full_application
from tidemill_rollout.gateway.journal import Journal
from tidemill_rollout.gateway.metrics import read_from
from tidemill_rollout.gateway.peers import Peers
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.routing import Routes
from tidemill_rollout.gateway.sandboxes import SandboxFiles
from tidemill_rollout.gateway.server import PULSE_SECONDS, HarnessSide, sandbox_application
from tidemill_rollout.gateway.tally import Tally

QUIET_SECONDS = 75.0
SHUTDOWN_SECONDS = 1.0
SWEEP_SECONDS = 60.0

BACKLOG = 4096
"""Connections that may wait to be accepted. With 128, of a thousand sub-agents that begin at once most try again, after 1, 3, 7 seconds."""


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
    job: str = ""
    gateways: tuple[str, ...] = ()  # URLs of all of the job, this one's too; empty: there is only this one
    number: int = 0  # of this one


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
        routes = Routes(gateways=max(1, len(settings.gateways)))
        generator = Generator(routes, session, settings.credential, renderer.end_ids, renderer.text, idle_seconds=settings.call_seconds / 2)
        registry = Registry("gateway", job=settings.job)
        tally = Tally(registry)
        gateway = Gateway(renderer, generator, routes, journal, delivery, tally, max_length=settings.max_length, call_seconds=settings.call_seconds)
        sweep: asyncio.Task[None] | None = None
        try:
            gateway.replay()
            read_from(registry, gateway, routes, delivery)
            files = SandboxFiles(settings.conductor_url, settings.credential, session)
            peers = Peers(settings.gateways, settings.number, session)
            harnesses = HarnessSide(gateway, peers, settings.pulse_seconds, files)
            tcp = await _started(runners, full_application(gateway, harnesses, settings.credential, registry))
            site = web.TCPSite(tcp, settings.host, settings.port, backlog=BACKLOG)
            await site.start()
            if settings.socket is not None:
                await web.UnixSite(await _started(runners, sandbox_application(harnesses)), str(settings.socket), backlog=BACKLOG).start()
            host, port = tcp.addresses[0][:2]
            sweep = asyncio.create_task(_sweep(gateway))
            yield Running(gateway, f"http://{host}:{port}", journal, writer)
        finally:
            if sweep is not None:
                sweep.cancel()
            gateway.stop()
            for runner in runners:
                await runner.cleanup()
            delivery.stop()
            if not writer.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await journal.flush()
            writer.cancel()
            await asyncio.wait({writer})
            journal.close()


async def _sweep(gateway: Gateway) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        await gateway.close_forgotten()


async def _started(runners: list[web.AppRunner], app: web.Application) -> web.AppRunner:
    # A connection that asks nothing, or never ends its headers, is closed; so is one that goes on sending what was refused.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, keepalive_timeout=QUIET_SECONDS, lingering_time=2.0)
    runners.append(runner)
    await runner.setup()
    return runner

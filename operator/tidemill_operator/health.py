"""/healthz, /readyz and /metrics. Healthy means that what should go round goes round, not merely that the process answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from tidemill.telemetry.exposition import metrics_of
from tidemill_operator.metrics import REGISTRY

STUCK_SECONDS = 120.0
"""A job that is due and not taken up for this long: the loop hangs."""


@dataclass(slots=True)
class Pulse:
    """What the parts say of themselves."""

    leading: bool = False
    overdue_seconds: Callable[[], float] = lambda: 0.0
    stale_watches: Callable[[], set[str]] = set


def trouble(pulse: Pulse) -> str:
    """Why the process should be restarted; empty when all is well. One that waits for the lease is well."""
    if not pulse.leading:
        return ""
    if pulse.overdue_seconds() > STUCK_SECONDS:
        return f"a job has been waiting for a pass for {pulse.overdue_seconds():.0f} s"
    if pulse.stale_watches():
        return f"watches of {', '.join(sorted(pulse.stale_watches()))} miss changes"
    return ""


async def serve(host: str, health_port: int, metrics_port: int, pulse: Pulse) -> list[web.AppRunner]:
    async def healthz(_: web.Request) -> web.Response:
        reason = trouble(pulse)
        return web.Response(status=503, text=reason + "\n") if reason else web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="leading\n" if pulse.leading else "standing by\n")

    health, figures = web.Application(), web.Application()
    health.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    figures.add_routes([web.get("/metrics", metrics_of(REGISTRY))])
    runners = []
    for app, port in ((health, health_port), (figures, metrics_port)):
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, port).start()
        runners.append(runner)
    return runners

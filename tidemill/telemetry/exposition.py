"""`GET /metrics`: the same handler in every process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from tidemill.telemetry.registry import Registry


def metrics_of(registry: Registry) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def metrics(request: web.Request) -> web.Response:
        body, content_type = registry.page(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    return metrics

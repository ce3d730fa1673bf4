"""Bodies in and out of our routes in vLLM's server: the same messages and the same shape of error as everywhere, and the job's token."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidemill.wire import trust
from tidemill.wire.http import Problem

PUBLIC_PATHS = ("/health", "/metrics")


async def read[T](request: Request, kind: type[T]) -> T | Response:
    """The body as a message, or the answer that says why it is none."""
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as cause:
        return refusal(400, f"{request.url.path}: not a {kind.__name__}: {cause}")


def reply(message: Any) -> Response:
    return Response(msgspec.json.encode(message), media_type="application/json")


def refusal(status: int, reason: str) -> Response:
    return Response(msgspec.json.encode(Problem(reason)), status_code=status, media_type="application/json")


class Guard:
    """ASGI middleware (`--middleware`): every path but `PUBLIC_PATHS` is for the job's processes. vLLM's own covers only some of its routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._trusted = trust.from_environment()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = scope["type"] in ("http", "websocket") and scope["path"] not in PUBLIC_PATHS
        if guarded and (reason := self._trusted.refusal(Headers(scope=scope).get("authorization", ""))):
            await refusal(401, f"{scope['path']}: {reason}")(scope, receive, send)
            return
        await self._app(scope, receive, send)

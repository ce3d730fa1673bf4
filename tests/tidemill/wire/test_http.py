from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import aiohttp
import msgspec
import pytest

from tidemill.wire import http
from tidemill.wire.http import Client, Unreachable


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port whose queue of connections is full: packets that ask for another are dropped."""
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = open_sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


async def test_a_connection_that_is_not_made_is_given_up_long_before_the_deadline_of_the_call(monkeypatch: pytest.MonkeyPatch, deaf: int) -> None:
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.3)
    async with aiohttp.ClientSession() as session:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            await Client(f"http://127.0.0.1:{deaf}", "secret", session).call("GET", "/x", msgspec.Raw, deadline_seconds=20.0)
        assert time.monotonic() - began < 5.0

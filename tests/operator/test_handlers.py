from __future__ import annotations

import asyncio
import getpass

import kopf
import pytest

from tidemill_operator.caches import Caches, Key
from tidemill_operator.handlers import login_with_service_account, watch
from tidemill_operator.queue import WorkQueue


@pytest.mark.parametrize(("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")])
def test_in_a_pod_the_watches_need_no_name_server(monkeypatch: pytest.MonkeyPatch, host: str, server: str) -> None:
    by_name = kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="secret")
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: by_name)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    info = login_with_service_account(settings=kopf.OperatorSettings())
    assert info is not None
    assert (info.server, info.token) == (server, "secret")


async def test_watching_begins_also_where_the_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nobody)
    stop, started = asyncio.Event(), asyncio.Event()
    stop.set()
    async with asyncio.timeout(20):
        await watch(Caches(), WorkQueue[Key](lambda: 0.0), (), stop, started.set)
    assert started.is_set()

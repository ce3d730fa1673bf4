from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidemill_operator.config import LeaseConfig
from tidemill_operator.kube import Conflict, Gone, Unavailable
from tidemill_operator.lease import Leadership, Seen, may_take, noticed


def lease(holder: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}}


def test_a_lease_is_free_when_nobody_holds_it_or_it_has_not_changed_for_its_duration_on_our_clock() -> None:
    assert may_take(None, "me", 0.0)
    assert may_take(Seen("", "1", 0.0, 15), "me", 0.0)
    assert may_take(Seen("me", "1", 0.0, 15), "me", 0.0)
    assert not may_take(Seen("other", "1", 100.0, 15), "me", 115.0)
    assert may_take(Seen("other", "1", 100.0, 15), "me", 115.1)


def test_a_renewal_starts_the_time_anew_and_a_mere_look_does_not() -> None:
    seen = noticed(None, lease("other"), 100.0)
    assert noticed(seen, lease("other"), 110.0).since == 100.0
    assert noticed(seen, lease("other", "2"), 110.0).since == 110.0


class Server:
    """Keeps one lease as the API server would."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    async def get(self, *_: str) -> dict[str, Any]:
        if self.lease is None:
            raise Gone(404, "none")
        return self.lease

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return await self.replace(manifest)

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        if self.lease is not None and manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "changed")
        self.version += 1
        self.lease = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self.version)}}
        return self.lease


class Line:
    """The server as one operator sees it, which can be cut off."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cut = False

    async def get(self, *parts: str) -> dict[str, Any]:
        self.reach()
        return await self.server.get(*parts)

    async def replace(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.reach()
        return await self.server.replace(manifest)

    create = replace

    def reach(self) -> None:
        if self.cut:
            raise Unavailable(0, "no answer")


FAST = LeaseConfig.model_validate({"durationSeconds": 2.0, "renewSeconds": 0.4, "retrySeconds": 0.02})


async def test_a_leader_that_is_cut_off_has_stopped_before_another_can_begin() -> None:
    loop = asyncio.get_running_loop()
    shared = Server()
    stopped, began = asyncio.Event(), asyncio.Event()
    times: dict[str, float] = {}

    async def first_work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            times["stopped"] = loop.time()
            stopped.set()

    async def second_work() -> None:
        times["began"] = loop.time()
        began.set()
        await asyncio.Event().wait()

    lines = [Line(shared), Line(shared)]
    first = Leadership(lines[0], FAST, "ns", "one", loop.time)
    second = Leadership(lines[1], FAST, "ns", "two", loop.time)
    leading = asyncio.create_task(first.lead(first_work))
    while not first.holds():
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(second.lead(second_work))
    await asyncio.sleep(0.2)
    assert not second.holds()
    lines[0].cut = True
    await asyncio.wait_for(began.wait(), 10.0)
    assert stopped.is_set()
    assert times["stopped"] < times["began"]
    assert not first.holds()
    await leading
    waiting.cancel()
    await asyncio.wait({waiting})
    assert shared.lease is not None
    assert shared.lease["spec"]["holderIdentity"] == "", "given back, so that the next need not wait"


async def test_a_failure_of_the_work_is_not_hidden() -> None:
    async def work() -> None:
        raise ValueError("broken")

    leadership = Leadership(Line(Server()), FAST, "ns", "one", asyncio.get_running_loop().time)
    with pytest.raises(ValueError, match="broken"):
        await leadership.lead(work)

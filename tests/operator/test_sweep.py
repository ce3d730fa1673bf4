from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidemill_operator import sweep
from tidemill_operator.actions import Ref
from tidemill_operator.caches import Caches, Key
from tidemill_operator.resources import Resource
from tidemill_operator.sweep import Sweeper

KEY = ("ns", "job")


def pod(version: int, name: str = "p") -> dict[str, Any]:
    labels = {"tidemill.dev/job": "job"}
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return {"kind": "Pod", "metadata": meta, "spec": {}, "status": {"phase": str(version)}}


class Server:
    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = list(objects)

    async def list(self, resource: Resource, namespaces: tuple[str, ...]) -> AsyncIterator[dict[str, Any]]:
        for raw in self.objects:
            if raw["kind"] == resource.kind:
                yield copy.deepcopy(raw)


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> tuple[Sweeper, Caches, Server, list[set[Key]]]:
    monkeypatch.setattr(sweep, "GRACE_SECONDS", 0.0)
    caches, server, told = Caches(), Server(pod(1)), list[set[Key]]()
    return Sweeper(server, caches, (), told.append), caches, server, told


async def test_what_a_watch_missed_is_brought_in_and_its_jobs_are_looked_at(swept: Any) -> None:
    sweeper, caches, server, told = swept
    await sweeper.fill()
    server.objects = [pod(2), pod(3, "new")]
    await sweeper.sweep()
    assert {p.phase for p in caches.pods(KEY)} == {"2", "3"}
    assert told[-1] == {KEY}


async def test_what_was_deleted_while_no_watch_was_open_is_forgotten(swept: Any) -> None:
    sweeper, caches, server, _ = swept
    await sweeper.fill()
    server.objects = []
    await sweeper.sweep()
    assert caches.entries == {}


async def test_a_watch_that_missed_something_twice_in_a_row_is_dead_and_once_is_a_lag(swept: Any) -> None:
    sweeper, _, server, _ = swept
    await sweeper.fill()
    server.objects = [pod(2)]
    await sweeper.sweep()
    assert sweeper.stale() == set()
    server.objects = [pod(3)]
    await sweeper.sweep()
    assert sweeper.stale() == {"Pod"}
    await sweeper.sweep()
    assert sweeper.stale() == set()


async def test_what_the_watch_brings_in_time_is_not_missed(swept: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeper, caches, server, _ = swept
    await sweeper.fill()

    async def meanwhile(_: float) -> None:
        caches.absorb(server.objects[0])

    monkeypatch.setattr(sweep.asyncio, "sleep", meanwhile)
    for version in (2, 3, 4):
        server.objects = [pod(version)]
        await sweeper.sweep()
    assert sweeper.stale() == set()
    assert caches.version(Ref("Pod", "ns", "p")) == 4

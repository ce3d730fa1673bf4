"""The trouble that the proxy makes is the trouble that it was told to make."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import ClientError
from kubernetes.aio import watch
from kubernetes.aio.client import ApiException, CoreV1Api, V1ConfigMap

from tests.cluster.api_server import ApiServer
from tests.cluster.proxy import FaultProxy


@dataclass(frozen=True, slots=True)
class Maps:
    """Config maps of one namespace, through the proxy or past it."""

    api: CoreV1Api
    namespace: str

    async def create(self, name: str) -> None:
        await self.api.create_namespaced_config_map(self.namespace, {"metadata": {"name": name}})

    async def names(self) -> set[str]:
        found: list[V1ConfigMap] = (await self.api.list_namespaced_config_map(self.namespace)).items
        return {item.metadata.name for item in found} - {"kube-root-ca.crt"}


@pytest.fixture
def proxied(api_server: ApiServer, proxy: FaultProxy, namespace: str) -> Path:
    api_server.kubectl("create", "rolebinding", "edits", "--clusterrole=edit", f"--serviceaccount={namespace}:default", f"--namespace={namespace}")
    return api_server.kubeconfig_for("default", namespace, proxy.url)


@pytest.fixture
async def maps(api_server: ApiServer, proxied: Path, namespace: str) -> AsyncIterator[Maps]:
    async with api_server.client(proxied) as client:
        yield Maps(CoreV1Api(client), namespace)


@pytest.fixture
async def direct(api_server: ApiServer, namespace: str) -> AsyncIterator[Maps]:
    async with api_server.client() as client:
        yield Maps(CoreV1Api(client), namespace)


async def test_without_trouble_everything_passes_and_is_counted(proxy: FaultProxy, maps: Maps, direct: Maps) -> None:
    await maps.create("one")
    assert await maps.names() == await direct.names() == {"one"}
    assert [(call.verb, call.resource, call.status) for call in proxy.calls] == [("create", "configmaps", 201), ("list", "configmaps", 200)]
    assert proxy.count("create|update|patch|delete") == 1
    assert proxy.count(namespace="elsewhere") == 0


def test_kubectl_goes_through_it_too(api_server: ApiServer, proxy: FaultProxy, proxied: Path, namespace: str) -> None:
    assert "kube-root-ca.crt" in api_server.control_plane.access.kubectl("get", "configmaps", kubeconfig=proxied)
    assert proxy.count("list", "configmaps", namespace) == 1


@pytest.mark.parametrize("status", [409, 410, 429, 500])
async def test_a_refusal_strikes_as_often_as_asked_and_never_reaches_the_server(proxy: FaultProxy, maps: Maps, direct: Maps, status: int) -> None:
    fault = proxy.answer(status, "POST", "configmaps", count=2)
    for _ in range(2):
        with pytest.raises(ApiException) as refused:
            await maps.create("one")
        assert refused.value.status == status
    assert await direct.names() == set()
    await maps.create("one")
    assert await direct.names() == {"one"}
    assert fault.hits == 2


async def test_a_lost_answer_was_a_deed_all_the_same(proxy: FaultProxy, maps: Maps, direct: Maps) -> None:
    proxy.lose_answers("POST")
    with pytest.raises(ClientError):
        await maps.create("one")
    assert await direct.names() == {"one"}


async def test_a_frozen_list_stays_as_it_was_until_healed(proxy: FaultProxy, maps: Maps, direct: Maps) -> None:
    proxy.freeze_lists("configmaps")
    assert await maps.names() == set()
    await direct.create("one")
    assert await maps.names() == set()
    proxy.heal()
    assert await maps.names() == {"one"}


async def test_a_delay_delays_what_matches_only(proxy: FaultProxy, maps: Maps) -> None:
    proxy.delay(0.5, "GET", "configmaps")
    started = time.monotonic()
    await maps.names()
    assert time.monotonic() - started >= 0.5
    assert proxy.faults[0].hits == 1
    await maps.create("one")
    assert proxy.faults[0].hits == 1


async def test_a_watch_loses_its_first_events_silently(proxy: FaultProxy, maps: Maps, direct: Maps) -> None:
    version = (await direct.api.list_namespaced_config_map(direct.namespace)).metadata.resource_version
    proxy.swallow_events(1, "configmaps")
    events = follow(maps, version)
    await until(lambda: proxy.open_watches("configmaps") == 1)
    await direct.create("missed")
    await direct.create("seen")
    assert await asyncio.wait_for(events, 10) == "seen"


async def test_dropped_watches_end_and_an_expired_one_says_so(proxy: FaultProxy, maps: Maps, direct: Maps) -> None:
    version = (await direct.api.list_namespaced_config_map(direct.namespace)).metadata.resource_version
    for expired, error in ((False, ClientError), (True, ApiException)):
        events = follow(maps, version)
        await until(lambda: proxy.open_watches("configmaps") == 1)
        assert await asyncio.to_thread(proxy.drop_watches, "secrets", expired) == 0
        assert await asyncio.to_thread(proxy.drop_watches, "configmaps", expired) == 1
        with pytest.raises(error):
            await asyncio.wait_for(events, 10)
        await until(lambda: proxy.open_watches() == 0)


def follow(maps: Maps, version: str) -> asyncio.Task[str]:
    """The name in the first event that a watch from this version on passes on."""

    async def first() -> str:
        async with watch.Watch().stream(maps.api.list_namespaced_config_map, maps.namespace, resource_version=version, timeout_seconds=30) as stream:
            async for event in stream:
                return str(event["object"].metadata.name)
        return ""

    return asyncio.create_task(first())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)

"""Several gateways: every execution has one, and a harness may knock at any."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI

from tests.ports import free_port
from tests.rollout.gateway.world import TOKEN, World, until, world
from tidemill.wire.gateway import Drain, Drained, Gateways
from tidemill.wire.http import Unreachable
from tidemill.wire.shards import address_of, addresses, shard_of
from tidemill_rollout.gateway import process
from tidemill_rollout.gateway.process import Running, Settings, running
from tidemill_rollout.sandbox.relay import CALL_HEADER

BODY = {"messages": [{"role": "user", "content": "go"}]}
EXECUTIONS = [f"n{number}" for number in range(8)]


@given(st.text(max_size=20), st.integers(1, 8))
def test_one_more_gateway_takes_over_only_what_becomes_its_own(execution: str, gateways: int) -> None:
    before, after = shard_of(execution, gateways), shard_of(execution, gateways + 1)
    assert after in (before, gateways)


def test_executions_are_spread_over_the_gateways() -> None:
    shares = Counter(shard_of(f"g{group}-{number}", 4) for group in range(250) for number in range(4))
    assert sorted(shares) == [0, 1, 2, 3]
    assert min(shares.values()) > 200


def test_an_address_is_found_in_the_list_that_processes_are_told() -> None:
    urls = addresses("http://a:1/, http://b:2")
    assert urls == ("http://a:1", "http://b:2")
    assert {address_of(name, urls) for name in EXECUTIONS} == set(urls)


@dataclass
class Many:
    world: World
    each: list[Running]
    client: Gateways

    def wrong(self, execution: str) -> str:
        """URL of a gateway that the execution is not at."""
        return self.each[(shard_of(execution, len(self.each)) + 1) % len(self.each)].url

    def openai(self, url: str, execution: str) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{url}/x/{execution}/v1", api_key=f"key-of-{execution}", max_retries=0)


@contextlib.asynccontextmanager
async def many(folder: Path, count: int = 3, say: Callable[[str], str] = lambda prompt: "hello", pulse_seconds: float = 15.0) -> AsyncIterator[Many]:
    """So many gateways beside each other in front of the same two cells; `EXECUTIONS` are open."""
    async with world(folder, say, cells=2) as w, contextlib.AsyncExitStack() as stack:
        ports = [free_port() for _ in range(count)]
        urls = tuple(f"http://127.0.0.1:{port}" for port in ports)
        made = Many(w, [], Gateways(urls, TOKEN, w.session))
        for number in range(count):
            made.each.append(await stack.enter_async_context(one_of(w, urls, number, pulse_seconds)))
        for cell in w.engines:
            await made.client.put_route(w.route_to(cell))
        for execution in EXECUTIONS:
            await made.client.open(w.opened(execution))
        yield made
        for engine in w.engines.values():
            engine.go.set()


@contextlib.asynccontextmanager
async def one_of(w: World, urls: tuple[str, ...], number: int, pulse_seconds: float = 15.0) -> AsyncIterator[Running]:
    settings = Settings(
        journal=w.folder / f"many-{number}.db",
        host="127.0.0.1",
        port=int(urls[number].rpartition(":")[2]),
        socket=None,
        conductor_url=w.conductor_url,
        credential=TOKEN,
        max_length=4096,
        call_seconds=30.0,
        pulse_seconds=pulse_seconds,
        gateways=urls,
        number=number,
    )
    async with running(settings, w.renderer) as gateway:
        yield gateway


async def test_a_harness_that_knocks_at_the_wrong_gateway_is_served_by_its_own(tmp_path: Path) -> None:
    async with many(tmp_path) as m:
        for execution in EXECUTIONS:
            client = m.openai(m.wrong(execution), execution)
            whole = await client.chat.completions.create(model="policy", messages=BODY["messages"])
            assert whole.choices[0].message.content == "hello"
            streamed = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "again"}], stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in streamed]) == "hello"
            assert [model.id async for model in client.models.list()] == ["policy"]
        for execution in EXECUTIONS:
            assert (await m.client.close(execution, 1)).turns == 2
        assert len(m.world.turns) == 2 * len(EXECUTIONS)
        assert [gateway.gateway.state().calls for gateway in m.each].count(0) == 0
        assert (await m.client.state()).calls == 2 * len(EXECUTIONS)


async def test_what_is_refused_is_refused_by_the_own_gateway_in_its_words(tmp_path: Path) -> None:
    async with many(tmp_path) as m:
        [execution, *_] = EXECUTIONS
        url = m.wrong(execution)
        for path, key, status in [
            (f"/x/{execution}/v1/chat/completions", "key-of-another", 401),
            ("/x/nobody/v1/chat/completions", "key", 404),
            (f"/x/{execution}/v1/nothing", f"key-of-{execution}", 404),
        ]:
            async with m.world.session.post(url + path, json=BODY, headers={"x-api-key": key}) as response:
                assert (response.status, "error" in await response.json()) == (status, True)
        large = b"x" * 1000
        headers = {"x-api-key": f"key-of-{execution}", "Content-Length": str(10**9)}
        async with m.world.session.post(url + f"/x/{execution}/v1/messages", data=_only(large), headers=headers) as response:
            assert response.status == 413


async def test_signs_of_life_pass_through(tmp_path: Path) -> None:
    async with many(tmp_path, pulse_seconds=0.01) as m:
        [execution, *_] = EXECUTIONS
        for engine in m.world.engines.values():
            engine.hold_after = 2
        body, headers = {**BODY, "stream": True}, {"x-api-key": f"key-of-{execution}"}
        async with m.world.session.post(m.wrong(execution) + f"/x/{execution}/v1/chat/completions", json=body, headers=headers) as response:
            for _ in range(5):
                assert (await asyncio.wait_for(response.content.readline(), 10)).startswith((b"data: ", b"\n"))
            for engine in m.world.engines.values():
                engine.go.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_a_drain_moves_the_calls_of_all_gateways(tmp_path: Path) -> None:
    async with many(tmp_path, say=lambda prompt: "a long answer") as m:
        first, second = m.world.engines["cell-1"], m.world.engines["cell-0"]
        first.hold_after = second.hold_after = 3
        asked = [asyncio.create_task(_ask(m, execution)) for execution in EXECUTIONS]
        await until(lambda: len(first.requests) + len(second.requests) == len(EXECUTIONS))
        before = len(first.requests)
        second.go.set()
        await until(lambda: len([request for request in first.requests if request]) == before and first.holding.is_set())
        drained = await m.client.drain("cell-1", Drain(2))
        assert drained == Drained(before, drained.moved_with_tokens)
        assert await asyncio.gather(*asked) == ["a long answer"] * len(EXECUTIONS)
        assert (await m.client.state()).routes == {"cell-0": 1}


async def test_a_gateway_that_is_away_holds_up_only_its_own_and_goes_on_from_its_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SHUTDOWN_SECONDS", 0.01)
    async with world(tmp_path, cells=1) as w, contextlib.AsyncExitStack() as stack:
        urls = tuple([f"http://127.0.0.1:{free_port()}" for _ in range(2)])
        client = Gateways(urls, TOKEN, w.session)
        await stack.enter_async_context(one_of(w, urls, 0))
        mine, other = (next(name for name in EXECUTIONS if shard_of(name, 2) == number) for number in (0, 1))
        async with one_of(w, urls, 1):
            await client.put_route(w.route_to("cell-0"))
            for name in (mine, other):
                await client.open(w.opened(name))
            assert await _said(w, urls[0], other) == (200, "hello")
        assert (await _said(w, urls[0], mine))[0] == 200
        assert (await _said(w, urls[0], other))[0] == 503
        with pytest.raises(aiohttp.ClientError):  # a relay asks again of itself, so the harness need not know
            await _said(w, urls[0], other, relayed="c1")
        with pytest.raises(Unreachable):
            await client.put_route(w.route_to("cell-0", version=1))
        async with one_of(w, urls, 1):
            assert await _said(w, urls[0], other) == (200, "hello")
            await client.put_route(w.route_to("cell-0", version=1))
            assert (await client.close(other, 1)).turns == 2
            assert (await client.close(mine, 1)).turns == 1


async def _said(w: World, url: str, execution: str, relayed: str = "") -> tuple[int, str]:
    headers = {"x-api-key": f"key-of-{execution}", **({CALL_HEADER: relayed} if relayed else {})}
    async with w.session.post(url + f"/x/{execution}/v1/chat/completions", json=BODY, headers=headers) as response:
        body = await response.json()
        if response.status == 503:
            assert int(response.headers["Retry-After"]) > 0
        return response.status, body["choices"][0]["message"]["content"] if response.status == 200 else ""


async def _ask(m: Many, execution: str) -> str:
    status, text = await _said(m.world, m.wrong(execution), execution)
    assert status == 200
    return text


async def _only(data: bytes) -> AsyncIterator[bytes]:
    yield data

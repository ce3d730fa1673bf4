"""What a sandbox's relay tells the gateway: an answer counts as delivered when the harness has it, not when it was sent."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.rollout.gateway.world import World, until, world
from tidemill_rollout.sandbox.relay import CALL_HEADER, DELIVERED_HEADER


async def ask(w: World, text: str, **headers: str) -> str:
    body = {"messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer key-of-e1", **headers}
    async with w.session.post(f"{w.url}/x/e1/v1/chat/completions", json=body, headers=headers) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return str(answer["choices"][0]["message"]["content"])


async def test_a_relayed_answer_is_kept_until_the_relay_says_that_the_harness_has_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        engine = w.engines["cell-0"]
        assert await ask(w, "go", **{CALL_HEADER: "c1"}) == "hello"
        assert await ask(w, "go", **{CALL_HEADER: "c1"}) == "hello"  # the relay has lost it on the way
        assert await ask(w, "go", **{CALL_HEADER: "c2"}) == "hello"  # the relay itself was lost, and this is the harness's own retry
        assert len(engine.requests) == 1
        assert (await w.state()).attached_retries == 2
        assert await ask(w, "go", **{CALL_HEADER: "c3", DELIVERED_HEADER: "c2"}) == "hello"
        assert len(engine.requests) == 2
        await w.close()
        assert len(w.turns) == 2


async def test_what_was_not_told_of_is_kept_over_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await ask(w, "one", **{CALL_HEADER: "c1"})
        await ask(w, "two", **{CALL_HEADER: "c2", DELIVERED_HEADER: "c1"})
        await until(lambda: len(w.turns) == 2)
        await w.now.journal.flush()
        async with w.gateway():
            await ask(w, "two", **{CALL_HEADER: "c2"})
            assert len(w.engines["cell-0"].requests) == 2
            await ask(w, "one", **{CALL_HEADER: "c3"})
            assert len(w.engines["cell-0"].requests) == 3


async def test_ids_of_nothing_and_of_other_executions_do_no_harm(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.open("e2")
        await ask(w, "go", **{CALL_HEADER: "c1"})
        body = {"messages": [{"role": "user", "content": "go"}]}
        headers = {"Authorization": "Bearer key-of-e2", DELIVERED_HEADER: "c1,,unknown"}
        async with w.session.post(f"{w.url}/x/e2/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
        assert len(w.engines["cell-0"].requests) == 2
        assert await ask(w, "go", **{CALL_HEADER: "c1"}) == "hello"
        assert len(w.engines["cell-0"].requests) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begins", [False, True], ids=["before the answer begins", "in the middle of it"])
async def test_a_gateway_that_stops_tells_harnesses_and_cuts_off_relays_which_ask_again(begins: bool, stream: bool, tmp_path: Path) -> None:
    begun: list[str] = []

    async def asked(text: str, **headers: str) -> str:
        body = {"messages": [{"role": "user", "content": text}], "stream": stream}
        headers = {"Authorization": "Bearer key-of-e1", **headers}
        async with w.session.post(f"{w.url}/x/e1/v1/chat/completions", json=body, headers=headers) as response:
            begun.append(text)
            return await response.text()

    async with world(tmp_path, pulse_seconds=0.01 if begins else 15.0) as w:
        w.engines["cell-0"].hold_after = 2
        async with w.gateway():
            await w.route()
            relayed = asyncio.create_task(asked("one", **{CALL_HEADER: "c1"}))
            told = asyncio.create_task(asked("two"))
            await until(lambda: len(w.engines["cell-0"].requests) == 2 and len(begun) == 2 * begins)
        with pytest.raises(aiohttp.ClientError):
            await relayed
        if begins and not stream:  # the status has been sent
            with pytest.raises(aiohttp.ClientError):
                await told
        else:
            assert "the gateway is stopping" in await told

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.rollout.gateway.world import World, until, world
from tests.tidemill.telemetry.exported import OPENMETRICS, Series, series, undeclared, value
from tidemill.telemetry.catalogue import of


async def page(w: World) -> str:
    async with w.session.get(w.url + "/metrics", headers={"Accept": OPENMETRICS}) as response:
        assert response.content_type == "application/openmetrics-text"
        return await response.text()


async def figures(w: World) -> Series:
    return series(await page(w))


async def test_a_gateway_exports_everything_that_is_declared_for_it_and_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.ask("go")
        told = await page(w)
        assert undeclared(told, "gateway") == []
        assert {metric.family for metric in of("gateway") if f"# TYPE {metric.family} " not in told} == set()


async def test_calls_and_their_tokens_are_counted_and_failures_by_wire_and_status(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.ask("go")
        before = await figures(w)
        assert value(before, "tidemill_gateway_calls_total") == 1
        assert value(before, "tidemill_gateway_sampled_tokens_total") == len("hello") + 1
        assert value(before, "tidemill_gateway_prompt_tokens_total") == len(w.turns[0].context_ids)
        assert value(before, "tidemill_gateway_call_seconds_count", wire="chat") == 1
        assert value(before, "tidemill_gateway_first_token_seconds_count") == 1
        assert 0 < value(before, "tidemill_gateway_first_token_seconds_sum") <= value(before, "tidemill_gateway_call_seconds_sum", wire="chat")
        async with w.post("/x/e1/v1/messages", {"messages": []}, key="wrong") as response:
            assert response.status == 401
        async with w.post("/x/e1/v1/chat/completions", "nonsense", key="key-of-e1") as response:
            assert response.status == 400
        after = await figures(w)
        counted = {
            (dict(labels)["wire"], dict(labels)["code"]): n for (name, labels), n in after.items() if name == "tidemill_gateway_requests_total"
        }
        assert counted == {("chat", "200"): 1, ("messages", "401"): 1, ("chat", "400"): 1}
        assert value(after, "tidemill_gateway_calls_total") == 1


async def test_a_call_that_no_engine_serves_waits_and_one_that_ends_without_an_answer_has_failed(tmp_path: Path) -> None:
    async with world(tmp_path, call_seconds=0.5) as w:
        w.engines["cell-0"].refuses = True
        asking = asyncio.create_task(
            w.session.post(
                w.url + "/x/e1/v1/chat/completions",
                json={"messages": [{"role": "user", "content": "go"}]},
                headers={"Authorization": "Bearer key-of-e1"},
            )
        )
        await until(lambda: bool(w.engines["cell-0"].requests))
        now = await figures(w)
        assert value(now, "tidemill_gateway_live_calls") == 1
        assert value(now, "tidemill_gateway_waiting_calls") == 1
        async with await asking as response:
            assert response.status == 503
        after = await figures(w)
        assert value(after, "tidemill_gateway_calls_failed_total") == 1
        assert (
            value(after, "tidemill_gateway_live_calls")
            == value(after, "tidemill_gateway_waiting_calls")
            == value(after, "tidemill_gateway_calls_total")
            == 0
        )


async def test_turns_are_held_until_the_conductor_has_them(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.conductor.down = True
        await w.ask("go")
        assert value(await figures(w), "tidemill_gateway_held_turns") == 1
        w.conductor.down = False
        await w.close()
        after = await figures(w)
        assert value(after, "tidemill_gateway_held_turns") == value(after, "tidemill_gateway_executions") == 0

"""Cells come and go while answers are under way: the harness sees one answer."""

import asyncio
from pathlib import Path

import pytest
from anthropic import AsyncAnthropic

from tests.rollout.gateway.world import logprob_of, text_of, tokens_of, until, world
from tidemill.wire.gateway import Drain, Drained
from tidemill.wire.http import Refused

LONG = "a long answer that is not over before the cell is drained"


async def test_a_drain_in_mid_answer_gives_one_answer_with_two_pieces(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: LONG, cells=2, pulse_seconds=0.01) as w:
        first, second = w.engines["cell-1"], w.engines["cell-0"]  # of equals the highest ordinal
        first.hold_after, first.version, second.version = 10, 3, 4
        client = AsyncAnthropic(base_url=f"{w.url}/x/e1", api_key="key-of-e1", max_retries=0)
        async with client.messages.stream(model="m", max_tokens=200, messages=[{"role": "user", "content": "go"}]) as stream:
            await asyncio.wait_for(first.holding.wait(), 10)
            assert await w.client.drain("cell-1", Drain(epoch=2)) == Drained(moved=1, moved_with_tokens=1)
            answer = await stream.get_final_message()
        assert answer.content[0].text == LONG
        await w.close()
        [turn] = w.turns
        assert [(piece.cell, len(piece.token_ids)) for piece in turn.pieces] == [("cell-1", 10), ("cell-0", len(LONG) + 1 - 10)]
        assert list(turn.sampled_ids) == tokens_of(LONG)
        assert list(turn.logprobs) == [logprob_of(token) for token in tokens_of(LONG)]
        assert list(turn.versions) == [3] * 10 + [4] * (len(LONG) + 1 - 10)
        assert first.left  # the engine was hung up on, so that it stops
        assert second.requests[0].sampling.max_tokens == first.requests[0].sampling.max_tokens - 10
        state = await w.state()
        assert (state.resubmitted_calls, state.recomputed_tokens) == (1, len(turn.context_ids) + 10)
        assert state.routes == {"cell-0": 1}


async def test_a_drained_call_waits_for_the_next_cell_and_the_drain_does_not(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: LONG) as w:
        engine = w.engines["cell-0"]
        engine.hold_after = 10
        asked = asyncio.create_task(w.ask("go"))
        await asyncio.wait_for(engine.holding.wait(), 10)
        assert (await w.client.drain("cell-0", Drain(epoch=2))).moved == 1
        engine.hold_after = None
        assert not asked.done()
        await w.route(epoch=3)
        assert await asked == LONG


async def test_an_older_epoch_has_no_effect(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.client.drain("cell-0", Drain(epoch=5))
        with pytest.raises(Refused, match="epoch 1 is older than 5"):
            await w.route(epoch=1)
        with pytest.raises(Refused):
            await w.client.drain("cell-0", Drain(epoch=4))
        assert not (await w.state()).routes
        await w.route(epoch=6)
        assert (await w.client.drain("cell-0", Drain(epoch=6))).moved == 0


async def test_a_drain_reserves_its_destinations_in_order(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: LONG, cells=4) as w:
        w.engines["cell-3"].hold_after = 5
        asked = asyncio.create_task(w.ask("go"))
        await asyncio.wait_for(w.engines["cell-3"].holding.wait(), 10)
        await w.client.drain("cell-3", Drain(2, destinations=("cell-1", "cell-2")))
        assert await asked == LONG
        assert len(w.engines["cell-1"].requests) == 1


@pytest.mark.parametrize("after", [0, 1, 20])
async def test_a_cut_stream_goes_on_elsewhere(tmp_path: Path, after: int) -> None:
    async with world(tmp_path, lambda prompt: LONG, cells=2) as w:
        w.engines["cell-1"].cut_after = after
        assert await w.ask("go") == LONG
        await w.close()
        [turn] = w.turns
        assert list(turn.sampled_ids) == tokens_of(LONG)
        assert [len(piece.token_ids) for piece in turn.pieces] == ([after, len(LONG) + 1 - after] if after else [len(LONG) + 1])


async def test_an_engine_that_comes_back_goes_on_where_it_was(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: LONG) as w:
        engine = w.engines["cell-0"]
        engine.cut_after = 30
        assert await w.ask("go") == LONG
        assert len(engine.requests) == 2


async def test_what_ended_with_its_last_token_is_not_continued_though_its_end_was_not_told(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "hello") as w:
        engine = w.engines["cell-0"]
        sample = engine._sample

        async def without_reason(request, response, generate):  # the engine dies between token and reason
            write = response.write
            response.write = lambda data: write(data.replace(b'"finish_reason":"stop"', b'"finish_reason":""'))
            await sample(request, response, generate)

        engine._sample = without_reason
        assert await w.ask("go") == "hello"
        assert len(engine.requests) == 1
        await w.close()
        assert w.turns[0].finish_reason == "stop"


async def test_a_cell_in_another_epoch_is_gone_around(tmp_path: Path) -> None:
    async with world(tmp_path, cells=2) as w:
        w.engines["cell-1"].refuses = True
        assert await w.ask("go") == "hello"
        assert len(w.engines["cell-1"].requests) == 1


async def test_without_a_cell_a_call_waits_and_at_its_deadline_says_so(tmp_path: Path) -> None:
    async with world(tmp_path, call_seconds=0.05) as w:
        await w.client.drain("cell-0", Drain(epoch=2))
        async with w.post("/x/e1/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, key="key-of-e1") as response:
            assert response.status == 503
            assert response.headers["Retry-After"]


async def test_an_execution_stays_where_its_last_turn_was(tmp_path: Path) -> None:
    async with world(tmp_path, cells=3) as w:
        await w.client.drain("cell-2", Drain(epoch=2))
        await w.client.drain("cell-1", Drain(epoch=2))
        await w.ask("one")
        await w.route(epoch=3)
        await w.ask("two")
        assert len(w.engines["cell-0"].requests) == 2


async def test_a_stop_string_is_found_though_two_engines_sampled_its_halves(tmp_path: Path) -> None:
    async with world(tmp_path, lambda prompt: "one STOP two three four", cells=2) as w:
        w.engines["cell-1"].cut_after = len("one ST")
        assert await w.ask("go", stop="STOP") == "one "
        await w.close()
        assert text_of(w.turns[0].sampled_ids) == "one STOP"
        assert len(w.turns[0].pieces) == 2


async def test_executions_are_spread_over_the_cells(tmp_path: Path) -> None:
    async with world(tmp_path, cells=2) as w:
        for engine in w.engines.values():
            engine.hold_after = 1
        keys = [f"e{n}" for n in range(2, 6)]
        for name in keys:
            await w.open(name)
        asked = [asyncio.create_task(w.ask("go", name)) for name in keys]
        await until(lambda: [len(engine.requests) for engine in w.engines.values()] == [2, 2])
        for engine in w.engines.values():
            engine.go.set()
        assert await asyncio.gather(*asked) == ["hello"] * 4

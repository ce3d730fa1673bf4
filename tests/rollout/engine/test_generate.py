import asyncio

import aiohttp
import pytest

from tests.engines import MAX_LENGTH, Publisher, RunningEngine
from tests.rollout.engine.answers import PROMPT, Reference, answer, logprobs_of
from tidemill.wire.engine import EngineClient, Generate, Sampling
from tidemill.wire.engine_control import EngineControl
from tidemill.wire.http import Rejected


async def test_tokens_go_in_and_tokens_with_logprob_and_version_come_out(client: EngineClient, version: int) -> None:
    got = await answer(client, max_tokens=20, temperature=0.0)
    assert len(got.ids) == len(got.logprobs) == 20
    assert got.versions == [version] * 20
    assert got.finish_reason == "length"


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.3, 0.8)])
async def test_log_probabilities_are_those_of_the_distribution_that_was_sampled_from(
    client: EngineClient, publisher: Publisher, engine: RunningEngine, temperature: float, top_p: float
) -> None:
    got = await answer(client, max_tokens=60, temperature=temperature, top_p=top_p)
    logits = Reference(engine.model, publisher.tensors).logits([*PROMPT, *got.ids])[len(PROMPT) - 1 : -1]
    assert got.logprobs == pytest.approx(logprobs_of(logits, got.ids, temperature, top_p), abs=1e-4)


async def test_an_answer_continued_elsewhere_at_temperature_0_is_the_uninterrupted_one(client: EngineClient) -> None:
    whole = await answer(client, max_tokens=40, temperature=0.0)
    rest = await answer(client, prompt=(*PROMPT, *whole.ids[:15]), max_tokens=25, temperature=0.0)
    assert rest.ids == whole.ids[15:]
    assert rest.logprobs == pytest.approx(whole.logprobs[15:], abs=1e-5)


async def test_a_seed_repeats_an_answer(client: EngineClient) -> None:
    first, second, other = [await answer(client, max_tokens=20, seed=seed) for seed in (7, 7, 8)]
    assert first.ids == second.ids != other.ids


async def test_a_stop_token_ends_the_answer_and_belongs_to_it(client: EngineClient) -> None:
    whole = await answer(client, max_tokens=40, temperature=0.0)
    stop = whole.ids[10]
    stopped = await answer(client, max_tokens=40, temperature=0.0, stop_token_ids=(stop,))
    assert stopped.ids == whole.ids[: whole.ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"


async def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(client: EngineClient) -> None:
    whole = await answer(client, max_tokens=60, temperature=0.0)
    letters = [i for i in whole.ids if ord("a") <= i <= ord("z") or ord("A") <= i <= ord("Z")]  # a byte's token id is its value
    stopped = await answer(client, max_tokens=60, temperature=0.0, stop=(chr(letters[0]),))
    assert stopped.ids == whole.ids[: whole.ids.index(letters[0]) + 1]
    assert len(stopped.ids) == len(stopped.logprobs) == len(stopped.versions)
    assert stopped.finish_reason == "stop"


async def test_the_answer_ends_where_the_context_does(client: EngineClient) -> None:
    got = await answer(client, prompt=(65,) * (MAX_LENGTH - 5), max_tokens=100, temperature=0.0)
    assert len(got.ids) == 5
    assert got.finish_reason == "length"


@pytest.mark.parametrize("length", [0, MAX_LENGTH])
async def test_a_prompt_without_room_for_an_answer_is_refused_with_the_figures(client: EngineClient, length: int) -> None:
    with pytest.raises(Rejected, match=f"{length} tokens; between 1 and {MAX_LENGTH - 1}") as caught:
        await answer(client, prompt=(65,) * length, max_tokens=5)
    assert caught.value.status == 400


async def test_many_calls_at_once_do_not_mix(client: EngineClient) -> None:
    prompts = [(*PROMPT, i) for i in range(12)]
    together = await asyncio.gather(*(answer(client, prompt=p, max_tokens=16, temperature=0.0) for p in prompts))
    for prompt, got in zip(prompts[:3], together[:3], strict=True):
        alone = await answer(client, prompt=prompt, max_tokens=16, temperature=0.0)
        assert got.ids == alone.ids


async def test_a_client_that_hangs_up_ends_its_call(client: EngineClient, control: EngineControl) -> None:
    stream = client.generate(Generate("call", PROMPT, Sampling(max_tokens=900, temperature=0.0)), idle_seconds=60)
    await anext(stream)
    assert (await control.state()).running == 1
    await stream.aclose()
    async with asyncio.timeout(5):
        while (await control.state()).running:
            await asyncio.sleep(0.01)


async def test_nothing_is_served_without_the_token_of_the_job(engine: RunningEngine, session: aiohttp.ClientSession) -> None:
    for path in ("/inference/v1/generate", "/control/v1/sleep", "/v1/completions", "/pause"):
        async with session.post(engine.url + path, json={}) as reply:
            assert reply.status == 401, path

import asyncio

import pytest

from tests.engines import Publisher
from tests.rollout.engine.answers import PROMPT, Answer, answer
from tidemill.wire.engine import EngineClient, Generate, Sampling
from tidemill.wire.engine_control import EngineControl
from tidemill.wire.http import Refused


async def test_an_answer_paused_in_the_middle_goes_on_as_if_nothing_had_happened(client: EngineClient, control: EngineControl) -> None:
    whole = await answer(client, max_tokens=200, temperature=0.0)
    got = Answer()

    async def read() -> None:
        async for sampled in client.generate(Generate("call", PROMPT, Sampling(max_tokens=200, temperature=0.0)), idle_seconds=60):
            got.add(sampled)

    reading = asyncio.create_task(read())
    while len(got.ids) < 10:
        await asyncio.sleep(0.001)
    state = await control.pause()
    assert (state.paused, state.running) == (True, 1)
    await asyncio.wait([reading], timeout=0.2)  # what was sampled before the pause arrives
    arrived = len(got.ids)
    await asyncio.wait([reading], timeout=0.3)  # a running engine samples dozens of tokens meanwhile
    assert len(got.ids) == arrived < 200
    assert not (await control.resume()).paused
    await reading
    assert got.ids == whole.ids


async def test_pause_and_resume_may_be_repeated(control: EngineControl, client: EngineClient) -> None:
    await control.pause()
    assert (await control.pause()).paused
    await control.resume()
    assert not (await control.resume()).paused
    assert len((await answer(client, max_tokens=3, temperature=0.0)).ids) == 3


async def test_a_paused_engine_stays_paused_when_it_is_given_weights(control: EngineControl, publisher: Publisher, version: int) -> None:
    await control.pause()
    loaded = await control.update_weights(publisher.snapshot(version + 10_000))
    assert loaded.state.paused
    await control.resume()


async def test_sleep_ends_what_is_in_flight_and_nothing_is_served_until_verified_weights_are_back(
    client: EngineClient, control: EngineControl, publisher: Publisher, version: int
) -> None:
    stream = client.generate(Generate("call", PROMPT, Sampling(max_tokens=900, temperature=0.0)), idle_seconds=60)
    await anext(stream)
    state = await control.sleep()
    assert (state.asleep, state.version, state.digest, state.running) == (True, -1, "", 0)
    *_, last = [sampled async for sampled in stream]
    assert last.finish_reason == "abort"

    with pytest.raises(Refused, match="the engine sleeps"):
        await answer(client, max_tokens=1)
    with pytest.raises(Refused, match="wake it first"):
        await control.resume()
    with pytest.raises(Refused, match="wake it first"):
        await control.update_weights(publisher.snapshot(version))
    assert (await control.sleep()).asleep

    state = await control.wake()
    assert (state.asleep, state.version) == (False, -1)
    with pytest.raises(Refused, match="no verified weights"):
        await answer(client, max_tokens=1)

    loaded = await control.update_weights(publisher.snapshot(version))
    assert (loaded.state.paused, loaded.state.version) == (False, version)
    assert (await answer(client, max_tokens=4, temperature=0.0)).versions == [version] * 4

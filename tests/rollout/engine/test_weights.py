import asyncio

import pytest

from tests.engines import Publisher, RunningEngine, tiny_model
from tests.rollout.engine.answers import PROMPT, Answer, Reference, answer, logprobs_of
from tidemill.wire.engine import EngineClient, Generate, Sampling
from tidemill.wire.engine_control import EngineControl
from tidemill.wire.http import Refused
from tidemill.wire.trainer import WeightSnapshot


async def test_the_digest_of_the_loaded_parameters_is_the_published_one(control: EngineControl, publisher: Publisher, version: int) -> None:
    before = publisher.snapshot(version)
    assert await control.digest() == before.digest
    publisher.perturb(seed=1)
    after = publisher.snapshot(version + 1000)
    loaded = await control.update_weights(after)
    assert loaded.state.digest == await control.digest() == after.digest != before.digest
    assert loaded.state.version == version + 1000
    assert list(loaded.seconds) == ["pause", "pull", "verify", "load", "digest", "resume"]


@pytest.mark.parametrize("recompute", [False, True])
async def test_in_an_answer_across_an_update_every_token_has_the_version_and_log_probability_of_the_weights_that_computed_it(
    client: EngineClient, control: EngineControl, publisher: Publisher, engine: RunningEngine, version: int, recompute: bool
) -> None:
    prompt = (200 + recompute, *PROMPT)  # one that no earlier call has left keys and values of
    old = Reference(engine.model, publisher.tensors)
    got = Answer()
    updated: asyncio.Task[object] | None = None
    async for sampled in client.generate(Generate("call", prompt, Sampling(max_tokens=300, temperature=0.0)), idle_seconds=60):
        got.add(sampled)
        if updated is None and len(got.ids) >= 20:
            publisher.perturb(seed=2)
            updated = asyncio.create_task(control.update_weights(publisher.snapshot(version + 2000), recompute_kv=recompute))
    assert updated is not None
    await updated
    new = Reference(engine.model, publisher.tensors)

    before = got.versions.count(version)
    assert 20 <= before < len(got.ids)
    assert got.versions == [version] * before + [version + 2000] * (len(got.ids) - before)
    ids = [*prompt, *got.ids]
    first = len(prompt)
    by_old = old.logits(ids)[first - 1 : -1]
    assert got.logprobs[:before] == pytest.approx(logprobs_of(by_old[:before], got.ids[:before]), abs=1e-4)
    kept = 0 if recompute else first + before - 1  # all but the last token's keys and values had been computed by the old weights
    by_new = new.logits(ids, after=old, known=kept)[first - 1 + before - kept : -1]
    assert got.logprobs[before:] == pytest.approx(logprobs_of(by_new, got.ids[before:]), abs=1e-4)


async def test_bytes_that_changed_after_they_were_announced_are_refused_and_the_old_weights_go_on(
    client: EngineClient, control: EngineControl, publisher: Publisher, version: int
) -> None:
    serving = await control.state()
    publisher.perturb(seed=3)
    snapshot = publisher.snapshot(version + 3000)
    publisher.memory[snapshot.shards[2].offset] ^= 1
    with pytest.raises(Refused, match=f"checksum, the first is {snapshot.shards[2].name}; version {version} stays loaded"):
        await control.update_weights(snapshot)
    assert await control.state() == serving
    assert await control.digest() == serving.digest
    assert (await answer(client, max_tokens=3, temperature=0.0)).versions == [version] * 3


async def test_weights_of_another_model_are_refused_by_name_and_shape(control: EngineControl, version: int) -> None:
    other = Publisher(tiny_model("llama"))
    with pytest.raises(Refused, match=r"not the weights of this model: lm_head.weight is absent there and \(\(320, 128\), 'float32'\) here"):
        await control.update_weights(other.snapshot(version + 4000))
    assert (await control.state()).version == version
    other.close()


async def test_weights_whose_holder_is_gone_are_refused(control: EngineControl, engine: RunningEngine, version: int) -> None:
    gone = Publisher(engine.model)
    snapshot = gone.snapshot(version + 5000)
    gone.close()
    with pytest.raises(Refused, match=f"version {version} stays loaded"):
        await control.update_weights(snapshot, deadline_seconds=5)


async def test_a_digest_that_does_not_belong_to_the_tensors_is_refused(control: EngineControl, publisher: Publisher, version: int) -> None:
    honest = publisher.snapshot(version + 6000)
    with pytest.raises(Refused, match="the digest is not that of the announced tensors"):
        await control.update_weights(WeightSnapshot(honest.step, honest.version, "0" * 32, honest.shards, honest.source))

"""An answer that moves between engines is the answer that one engine would have given: real engines behind the real gateway, at temperature 0."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engines import Publisher, RunningEngine, start_engine, tiny_model
from tests.rollout.gateway.world import ScriptedConductor, serving
from tidemill.api.rljob import Tools
from tidemill.trajectory.records import Turn
from tidemill.wire.engine import EngineClient, Generate, Sampling
from tidemill.wire.engine_control import EngineControl
from tidemill.wire.gateway import Drain, GatewayClient, OpenExecution, Route
from tidemill_rollout.gateway.process import Settings, running
from tidemill_rollout.gateway.render import Renderer

TOKEN = "the-job"
MAX_LENGTH = 1024
ANSWER_TOKENS = 192
SAMPLED_BEFORE_A_MOVE = 200  # by all calls together
QUESTIONS = tuple(f"Write a line about the {tree}." for tree in ("ash", "birch", "cedar", "elm", "fir", "oak"))
NEAR_TIE = 1e-4
"""Closer than this the two best tokens' log-probabilities are equal for float32, and either may be taken."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Two, with the same weights: those that `publisher` holds."""

    by_cell: dict[str, RunningEngine]
    publisher: Publisher


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    publisher = Publisher(tiny_model())
    publisher.perturb(seed=3)  # not what the engines start with
    started = {cell: start_engine(tiny_model(), cell, token=TOKEN) for cell in ("cell-0", "cell-1")}

    async def publish() -> None:
        async with aiohttp.ClientSession() as session:
            for engine in started.values():
                await EngineControl(engine.url, TOKEN, session).update_weights(publisher.snapshot(1))

    try:
        asyncio.run(publish())
        yield Engines(started, publisher)
    finally:
        for engine in started.values():
            engine.stop()
        publisher.close()


class Answers:
    """Asks the gateway, moves what is under way between cells, and reads the turns that result."""

    def __init__(self, engines: Engines, url: str, conductor: ScriptedConductor, session: aiohttp.ClientSession) -> None:
        self._engines = engines
        self._url = url
        self._conductor = conductor
        self._session = session
        self._gateway = GatewayClient(url, TOKEN, session)
        self._epoch = 0

    async def to_all_questions(self, name: str, cells: tuple[str, ...]) -> list[Turn]:
        """Sampled by the first cell, then, moved in mid-answer, by the next, and so on."""
        sampling = Sampling(ANSWER_TOKENS, temperature=0.0)
        await self._gateway.open(OpenExecution(name, 1, f"key-of-{name}", "test", sampling, time.time() + 300))
        await self._route(cells[0])
        asked = [asyncio.create_task(self._ask(name, question)) for question in QUESTIONS]
        for cell, following in pairwise(cells):
            await self._sampled_some(cell)
            await self._route(following)
            await self._gateway.drain(cell, Drain(self._next_epoch(), (following,)))
        await asyncio.gather(*asked)
        assert (await self._gateway.close(name, 1)).turns == len(QUESTIONS)
        await self._gateway.drain(cells[-1], Drain(self._next_epoch()))
        turns = [turn for turn in self._conductor.turns.values() if turn.execution == name]
        return sorted(turns, key=lambda turn: list(turn.context_ids))

    async def _ask(self, name: str, question: str) -> None:
        body = {"messages": [{"role": "user", "content": question}]}
        async with self._session.post(
            f"{self._url}/x/{name}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer key-of-{name}"}
        ) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    async def _route(self, cell: str) -> None:
        engine = self._engines.by_cell[cell]
        await self._gateway.put_route(Route(cell, self._next_epoch(), 1, engine.url, capacity=8))

    async def _sampled_some(self, cell: str) -> None:
        before = await self._sampled(cell)
        async with asyncio.timeout(60):
            while await self._sampled(cell) < before + SAMPLED_BEFORE_A_MOVE:
                await asyncio.sleep(0.01)

    async def _sampled(self, cell: str) -> float:
        engine = self._engines.by_cell[cell]
        async with self._session.get(f"{engine.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:generation_tokens_total"))

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch


@contextlib.asynccontextmanager
async def gateway_before(engines: Engines, folder: Path) -> AsyncIterator[Answers]:
    conductor = ScriptedConductor()
    async with serving(conductor.application()) as conductor_url, aiohttp.ClientSession() as session:
        settings = Settings(folder / "gateway-0.db", "127.0.0.1", 0, None, conductor_url, TOKEN, MAX_LENGTH, call_seconds=120)
        async with running(settings, Renderer(tiny_model(), Tools.TEXT)) as gateway:
            yield Answers(engines, gateway.url, conductor, session)


@pytest.mark.parametrize("cells", [("cell-0", "cell-1"), ("cell-1", "cell-0", "cell-1")], ids="-".join)
async def test_a_resubmitted_answer_equals_the_uninterrupted_one_up_to_the_first_near_tie(
    engines: Engines, tmp_path: Path, cells: tuple[str, ...]
) -> None:
    async with gateway_before(engines, tmp_path) as answers:
        whole = await answers.to_all_questions("whole", cells[:1])
        moved = await answers.to_all_questions("moved", cells)
    assert [turn.context_ids for turn in whole] == [turn.context_ids for turn in moved]
    assert all(len(turn.pieces) == 1 for turn in whole)
    assert sum(tuple(piece.cell for piece in turn.pieces) == cells for turn in moved) >= len(QUESTIONS) // 2
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    model.load_state_dict(engines.publisher.tensors)
    for one, other in zip(whole, moved, strict=True):
        assert len(one.sampled_ids) > 1
        differs = next((place for place, (a, b) in enumerate(zip(one.sampled_ids, other.sampled_ids, strict=False)) if a != b), None)
        if differs is None:
            assert one.sampled_ids == other.sampled_ids
            continue
        with torch.inference_mode():
            logits = model(torch.tensor([[*one.context_ids, *one.sampled_ids[:differs]]])).logits[0, -1]
        best, second = logits.log_softmax(-1).topk(2).values
        assert best - second < NEAR_TIE, f"token {differs} of {len(one.sampled_ids)} is another, and it was no near-tie"


async def test_an_engine_that_is_told_to_stop_cuts_its_answers_at_once_and_ends(engines: Engines) -> None:
    """The last test of this file: it ends an engine. A stream that hung would hold up the end of the whole job."""
    engine = engines.by_cell["cell-1"]
    prompt = tuple(QUESTIONS[0].encode())
    sampled, cut = 0, 0.0
    async with aiohttp.ClientSession() as session, asyncio.timeout(60):
        async for run in EngineClient(engine.url, TOKEN, session).generate(Generate("last", prompt, Sampling(900, temperature=0.0)), 30.0):
            assert not run.finish_reason, "it must be cut"
            if not sampled:
                engine.process.send_signal(signal.SIGTERM)
                cut = time.monotonic()
            sampled += len(run.token_ids)
    assert sampled > 0
    assert time.monotonic() - cut < 5
    assert await asyncio.to_thread(engine.process.wait, 10) == 0
    assert "Traceback" not in engine.log()

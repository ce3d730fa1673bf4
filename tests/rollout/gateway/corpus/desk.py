"""One gateway with a scripted engine for the whole corpus; each case has an execution of its own there."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from tests.rollout.gateway.corpus.notation import OPENS, text_of, tokens, written
from tests.rollout.gateway.world import CHATML_WITH_TOOLS, END, World, logprob_of, paths, world
from tidemill.api.rljob import Tools
from tidemill.trajectory.records import Turn
from tidemill.wire.engine import Generate, Sampled

MAX_LENGTH = 4096


class Refused(Exception):
    """Another status than 200."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


@dataclass
class Desk:
    """What a case is played at. `answers` are what the engine will say, each to a prompt that holds the text beside it."""

    world: World
    execution: str = ""
    harness: str = ""
    attempt: int = 1
    answers: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    prompts: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by the turn's id
    sampled: dict[str, tuple[int, ...]] = field(default_factory=dict)
    versions: tuple[int, ...] = (0,)  # of the first tokens of an answer; the last goes on
    held: bool = False
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    _attached: int = 0

    def will_say(self, answer: str, to: str = "") -> None:
        """In the notation of trees."""
        self.answers.append((to, (*tokens(written(answer)), END)))

    async def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> bytes:
        """Raises `Refused`."""
        sent = {"Authorization": f"Bearer key-of-{self.execution}", **(headers or {})}
        async with self.world.session.post(f"{self.world.url}/x/{self.execution}/{path}", data=json.dumps(body), headers=sent) as response:
            raw = await response.read()
            if response.status != 200:
                raise Refused(response.status, json.loads(raw))
            return raw

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """The engine stops after the first token of an answer, until the block is left. `holding` is set when it has."""
        self._attached = (await self.world.state()).attached_retries
        self.held = True
        self.holding.clear()
        self.go.clear()
        try:
            yield
        finally:
            self.held = False
            self.go.set()

    async def asked(self, to: str) -> None:
        """Wait until the engine has begun what it was to say to this."""
        async with asyncio.timeout(5):
            while any(known == to for known, _ in self.answers):
                await asyncio.sleep(0.001)

    async def attached(self, calls: int) -> None:
        """Wait until so many more requests have been found to be retries."""
        before = self._attached
        async with asyncio.timeout(5):
            while (await self.world.state()).attached_retries < before + calls:
                await asyncio.sleep(0.001)

    async def sample(self, _: web.Request, response: web.StreamResponse, generate: Generate) -> None:
        """The engine."""
        prompt = tuple(generate.token_ids)
        assert prompt[-len(tokens(OPENS)) :] == tokens(OPENS), "an answer is asked for, and none is begun"
        shown = text_of(prompt)
        place = next((n for n, (to, _) in enumerate(self.answers) if to in shown), -1)
        assert place >= 0, f"nobody expected the prompt {shown!r}"
        answer = self.answers.pop(place)[1][: generate.sampling.max_tokens]
        turn = generate.request_id.rpartition("-")[0]
        self.prompts[turn], self.sampled[turn] = prompt, answer
        if self.held:
            await self._send(response, answer[:1], 0)
            self.holding.set()
            await self.go.wait()
            await self._send(response, answer[1:], 1, "stop" if answer[-1] == END else "length")
        else:
            await self._send(response, answer, 0, "stop" if answer[-1] == END else "length")

    async def _send(self, response: web.StreamResponse, run: tuple[int, ...], first: int, reason: str = "") -> None:
        versions = tuple(self.versions[min(first + place, len(self.versions) - 1)] for place in range(len(run)))
        await response.write(msgspec.json.encode(Sampled(run, tuple(map(logprob_of, run)), versions, reason)) + b"\n")

    async def begin(self, execution: str, harness: str) -> None:
        """Sit down to another execution."""
        self.execution, self.harness, self.attempt = execution, harness, 1
        self.answers, self.versions = [], (0,)
        self._forget()
        await self.world.open(execution, harness=harness)

    async def end(self) -> list[Turn]:
        """Everything that was sampled, as it was recorded."""
        await self.world.close(self.execution, self.attempt)
        turns = self.turns()
        assert not self.answers, "everything that was to be said was asked for"
        assert {turn.id: tuple(turn.sampled_ids) for turn in turns} == self.sampled, "what was sampled is in the tree, once"
        whole = paths(turns)
        for turn in turns:
            assert whole[turn.id] == [*self.prompts[turn.id], *turn.sampled_ids], "the tree has the very tokens that the engine got"
            assert list(turn.logprobs) == [logprob_of(token) for token in turn.sampled_ids]
        return turns

    def _forget(self) -> None:
        self.prompts.clear()
        self.sampled.clear()

    async def begin_anew(self) -> None:
        """The infrastructure failed this attempt."""
        await self.world.close(self.execution, self.attempt)
        self.attempt += 1
        self._forget()
        await self.world.open(self.execution, self.attempt, harness=self.harness)

    def turns(self) -> list[Turn]:
        """Of this attempt, as far as the conductor has them."""
        return [turn for turn in self.world.turns if (turn.execution, turn.attempt) == (self.execution, self.attempt)]


@contextlib.asynccontextmanager
async def desk(folder: Path) -> AsyncIterator[Desk]:
    async with world(folder, tools=Tools.NATIVE, template=CHATML_WITH_TOOLS, max_length=MAX_LENGTH) as made:
        sitting = Desk(made)
        made.engines["cell-0"]._sample = sitting.sample  # ours says tokens that are no text, too
        yield sitting

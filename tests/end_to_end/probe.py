"""Agents of the test's own at a running job's gateway: Anthropic's official client, which streams until enough flips have caught calls in flight."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass

import aiohttp
from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageParam

from tests.end_to_end.running import TOKEN, Job, committed_steps, events, kept_turns, said, url_of
from tidemill.telemetry.events import FlipEnded
from tidemill.trajectory.records import Turn
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import GatewayClient, OpenExecution
from tidemill_rollout.gateway.turns import Kept

KEY = "key-of-the-probe"
PROBES = 3  # at once: the gateway keeps an execution on its cell, and the last cell is left last
TURN_TOKENS = 512
CONVERSATION_TURNS = 3  # then the context is full
FLIPS = 4  # with calls in flight, before the probes end
LAST_STEP = 9  # of twelve: they end before the job does
SECONDS = 250.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer as the client saw it, and as the gateway journaled it."""

    text: str
    message: Message
    kept: Kept


@dataclass(frozen=True, slots=True)
class Probed:
    """Every conversation that the probes had. Each ends with the answer that two cells have sampled, if it comes to that."""

    conversations: list[list[Streamed]]

    @property
    def crossed(self) -> list[Streamed]:
        """One that ended so."""
        return next(answers for answers in self.conversations if answers and _crossed(answers[-1]))

    @property
    def turns(self) -> list[Turn]:
        return [answer.kept.turn for answers in self.conversations for answer in answers]


async def cross_flips(job: Job, session: aiohttp.ClientSession) -> Probed:
    """Converse beside the job's agents until `FLIPS` cells have left rollout with calls in flight. Then all probes end with the answer they get."""
    conversations: list[list[Streamed]] = []
    over = asyncio.Event()
    try:
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as probes:
            for number in range(PROBES):
                probes.create_task(_converse(job, session, f"probe-{number}", conversations, over))
            while not _enough(job, conversations):
                await asyncio.sleep(0.5)
            over.set()
    except TimeoutError as cause:
        raise AssertionError(f"fewer than {FLIPS} flips with calls in flight:\n{said(job)}") from cause
    return Probed(conversations)


def _enough(job: Job, conversations: list[list[Streamed]]) -> bool:
    caught = sum(isinstance(event, FlipEnded) and event.calls_in_flight > 0 for event in events(job))
    crossed = any(_crossed(answers[-1]) for answers in conversations if answers)
    return (crossed and caught >= FLIPS) or committed_steps(job) >= LAST_STEP


def _crossed(answer: Streamed) -> bool:
    return len({piece.cell for piece in answer.kept.turn.pieces}) > 1


async def _converse(job: Job, session: aiohttp.ClientSession, name: str, conversations: list[list[Streamed]], over: asyncio.Event) -> None:
    """Conversation after conversation, each an execution of its own."""
    url = url_of(job, "tidemill_rollout.gateway")
    gateway = GatewayClient(url, TOKEN, session)
    for conversation in itertools.count():
        if over.is_set():
            return
        execution = f"{name}-{conversation}"
        await gateway.open(OpenExecution(execution, 1, KEY, "probe", Sampling(TURN_TOKENS), time.time() + SECONDS))
        client = AsyncAnthropic(base_url=f"{url}/x/{execution}", api_key=KEY, max_retries=0)
        messages: list[MessageParam] = []
        answers: list[Streamed] = []
        conversations.append(answers)
        try:
            for turn in range(CONVERSATION_TURNS):
                if over.is_set():
                    return
                messages.append({"role": "user", "content": f"Line {turn}, please."})
                text, message = await _stream(client, messages)
                messages.append({"role": "assistant", "content": text or " "})
                kept = [kept for kept in kept_turns(job) if kept.turn.execution == execution]
                assert len(kept) == len(answers) + 1
                answers.append(Streamed(text, message, kept[-1]))
                if _crossed(answers[-1]):
                    break
        finally:
            await gateway.close(execution, 1)


async def _stream(client: AsyncAnthropic, messages: list[MessageParam]) -> tuple[str, Message]:
    async with client.messages.stream(model="policy", max_tokens=TURN_TOKENS, messages=messages) as stream:
        text = "".join([part async for part in stream.text_stream])
        return text, await stream.get_final_message()

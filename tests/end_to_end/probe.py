"""An agent of the test's own at a running job's gateway: Anthropic's official client, which streams until one of its answers has crossed a flip."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import aiohttp
from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageParam

from tests.end_to_end.running import TOKEN, Job, kept_turns, said, url_of
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import GatewayClient, OpenExecution
from tidemill_rollout.gateway.turns import Kept

NAME = "probe"
KEY = "key-of-the-probe"
TURN_TOKENS = 512
CONVERSATION_TURNS = 3  # then the context is full
SECONDS = 150.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer as the client saw it, and as the gateway journaled it."""

    text: str
    message: Message
    kept: Kept


async def cross_a_flip(job: Job, session: aiohttp.ClientSession) -> list[Streamed]:
    """Converse, alone among the job's agents, until two cells have sampled one answer. All answers, that one last."""
    url = url_of(job, "tidemill_rollout.gateway")
    gateway = GatewayClient(url, TOKEN, session)
    await gateway.open(OpenExecution(NAME, 1, KEY, "probe", Sampling(TURN_TOKENS), time.time() + SECONDS))
    client = AsyncAnthropic(base_url=f"{url}/x/{NAME}", api_key=KEY, max_retries=0)
    answers: list[Streamed] = []
    messages: list[MessageParam] = []
    try:
        async with asyncio.timeout(SECONDS):
            while not answers or len({piece.cell for piece in answers[-1].kept.turn.pieces}) < 2:
                if len(messages) == 2 * CONVERSATION_TURNS:
                    messages = []
                messages.append({"role": "user", "content": f"Line {len(answers)}, please."})
                text, message = await _stream(client, messages)
                messages.append({"role": "assistant", "content": text or " "})
                kept = [kept for kept in kept_turns(job) if kept.turn.execution == NAME]
                assert len(kept) == len(answers) + 1
                answers.append(Streamed(text, message, kept[-1]))
    except TimeoutError as cause:
        raise AssertionError(f"none of {len(answers)} answers crossed a flip:\n{said(job)}") from cause
    await gateway.close(NAME, 1)
    return answers


async def _stream(client: AsyncAnthropic, messages: list[MessageParam]) -> tuple[str, Message]:
    async with client.messages.stream(model="policy", max_tokens=TURN_TOKENS, messages=messages) as stream:
        text = "".join([part async for part in stream.text_stream])
        return text, await stream.get_final_message()

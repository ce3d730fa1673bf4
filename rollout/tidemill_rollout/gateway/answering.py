"""How a model call is answered: rendered, sampled, read, and journaled. Only then the harness may know."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from tidemill.trajectory.columns import INT, Ints, column
from tidemill.trajectory.records import Turn
from tidemill_rollout.gateway.conversation import Answer, Ask, Fault, Finish, Message, ToolCall, TooLong
from tidemill_rollout.gateway.delivery import Delivery
from tidemill_rollout.gateway.execution import Call, Execution
from tidemill_rollout.gateway.generation import Generation, Generator
from tidemill_rollout.gateway.journal import Journal
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.repeated import Reading
from tidemill_rollout.gateway.rounds import Rounds
from tidemill_rollout.gateway.tally import Tally
from tidemill_rollout.gateway.turns import Kept, Place

INLINE_CHARACTERS = 20_000
"""Longer texts are tokenised in a thread: 20,000 characters take about 5 ms."""


@dataclass(frozen=True, slots=True)
class Answering:
    renderer: Renderer
    generator: Generator
    journal: Journal
    delivery: Delivery
    tally: Tally
    counters: dict[str, int]
    max_length: int
    call_seconds: float
    clock: Callable[[], float]
    rounds: Rounds = field(default_factory=Rounds)

    async def answer(self, call: Call, asked: list[Reading]) -> Answer:
        """The one reading in `asked` is taken out: a task holds its arguments, and a history may have megabytes. Raises `Fault`."""
        try:
            return await self._turn(call, asked)
        except asyncio.CancelledError as cause:
            if call.execution.closed:
                raise Fault(403, f"execution {call.execution.name} is closed") from cause
            raise

    async def count_tokens(self, ask: Ask) -> int:
        return len(await self._rendered(ask.messages, lambda: self.renderer.prompt(ask.messages, ask.tools)))

    async def _turn(self, call: Call, asked: list[Reading]) -> Answer:
        execution, ask = call.execution, asked[0].ask
        started = self.clock()
        call_seconds = execution.opened.call_seconds or self.call_seconds
        try:
            async with asyncio.timeout(call_seconds):
                place = asked.pop().place(execution.history)
                parent, given, context, prompt = await self._prompt(execution, place, ask)
                given_by = tuple(message.role for message in given)
                ask, place, given = msgspec.structs.replace(ask, messages=()), replace(place, new=()), ()
                call.prompt_tokens = len(prompt)
                if len(prompt) >= self.max_length:
                    raise TooLong(len(prompt), self.max_length - 1)
                sampling = execution.opened.sampling
                room = self.max_length - len(prompt)
                wanted = min(sampling.max_tokens, room, ask.max_tokens if ask.max_tokens is not None else room)
                sampling = msgspec.structs.replace(sampling, max_tokens=wanted, stop=sampling.stop + ask.stop)
                generation = await self.generator.sample(execution.name, call.turn, prompt, sampling, (execution.cell,))
        except TimeoutError as cause:
            raise Fault(503, f"no answer within {call_seconds:g} s", retry_after=5) from cause
        call.sampling = False
        execution.cell = generation.cell
        answer = self._read(call.turn, generation, ask, sampling.stop)
        turn = Turn(
            id=call.turn,
            execution=execution.name,
            attempt=execution.opened.attempt,
            parent=parent,
            agent=ask.agent,
            context_ids=context,
            pieces=tuple(piece.piece() for piece in generation.pieces),
            finish_reason=generation.finish_reason,
            started=started,
            ended=self.clock(),
            wire=ask.wire,
            parent_agent=ask.parent_agent,
            summary=ask.summary,
            asked=ask.asked,
            given_by=given_by,
        )
        kept = Kept(turn, answer, place.after, place.given, call.request, generation.recomputed)
        counts = {"calls": 1, "resubmitted": int(len(turn.pieces) > 1), "recomputed": generation.recomputed}
        await self.journal.keep(kept, counts)
        for name, added in counts.items():
            self.counters[name] += added
        self.tally.kept(turn, len(generation.prompt), generation.first_token)
        execution.history.add(kept)
        self.delivery.add(turn)
        return answer

    async def _prompt(self, execution: Execution, place: Place, ask: Ask) -> tuple[str, Sequence[Message], Ints, Ints]:
        """Parent, messages given after it, their tokens, and the whole prompt."""
        history, renderer = execution.history, self.renderer
        parent, given = "", ask.messages
        context: Ints | None = None
        prompt: Ints
        if place.after:
            answered, last = history.answer(place.after).message, history.last_token(place.after)
            bridge = await self._rendered(place.new, lambda: renderer.bridge(answered, last, place.new, ask.tools))
            context = None if bridge is None else column(INT, bridge)
        if context is not None:
            parent, given, prompt = place.after, place.new, history.tokens(place.after, context)
        else:
            context = prompt = column(INT, await self._rendered(ask.messages, lambda: renderer.prompt(ask.messages, ask.tools)))
        answers = [position for position, message in enumerate(given) if message.role == "assistant"]
        if answers:  # none that was recognised; but perhaps their tokens are
            deeper, known, passed = history.deepest(prompt, parent)
            if passed:
                start = answers[min(passed, len(answers)) - 1] + 1
                return deeper, given[start:], tuple(prompt[known:]), prompt
        return parent, given, context, prompt

    def _read(self, turn: str, generation: Generation, ask: Ask, stop: tuple[str, ...]) -> Answer:
        sampled = generation.sampled
        reading = self.renderer.read(sampled, ask.tools, stop)
        calls = tuple(ToolCall(f"{turn}x{number}", name, arguments) for number, (name, arguments) in enumerate(reading.calls))
        finish: Finish = "stop"
        if calls:
            finish = "calls"
        elif reading.stop_text:
            finish = "stop-text"
        elif generation.finish_reason == "length":
            finish = "length"
        shown = self.renderer.shown(sampled, generation.logprobs) if ask.logprobs else ()
        return Answer(turn, reading.text, reading.reasoning, calls, finish, len(generation.prompt), len(sampled), reading.stop_text, shown)

    async def _rendered[T](self, messages: Sequence[Message], work: Callable[[], T]) -> T:
        if sum(len(message.text) for message in messages) <= INLINE_CHARACTERS:
            return await self.rounds.do(work)
        return await asyncio.to_thread(work)

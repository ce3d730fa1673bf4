"""Open executions and their model calls: each call becomes one journaled turn, whatever happens to engines and connections meanwhile."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tidemill.telemetry.logs import Log
from tidemill.trajectory.records import Turn
from tidemill.wire.gateway import Closed, Drain, Drained, GatewayState, OpenExecution, Route
from tidemill.wire.http import Refused
from tidemill_rollout.gateway.conversation import Answer, Ask, Fault, Finish, ToolCall, TooLong, request_digest
from tidemill_rollout.gateway.delivery import Delivery
from tidemill_rollout.gateway.generation import Generation, Generator
from tidemill_rollout.gateway.journal import Journal
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.routing import Routes
from tidemill_rollout.gateway.turns import History, Kept, Place

CALLS_PER_EXECUTION = 32
"""Live calls of one execution; a harness that floods gets 503 for what exceeds it."""

CALLS = 2048
"""Live calls of one gateway."""

INLINE_CHARACTERS = 20_000
"""Longer texts are tokenised in a thread: 20,000 characters take about 5 ms."""

log = Log(__name__)


@dataclass(slots=True, eq=False)
class Call:
    """One model call: live, or answered and not yet delivered in full."""

    execution: Execution
    request: bytes
    turn: str
    outcome: asyncio.Future[Answer]
    prompt_tokens: int = 0
    sampling: bool = True  # until the answer is complete; then it can no longer be cancelled, only journaled


@dataclass(slots=True, eq=False)
class Execution:
    opened: OpenExecution
    history: History = field(default_factory=History)
    calls: dict[bytes, Call] = field(default_factory=dict)  # by digest of the request
    live: int = 0
    cell: str = ""  # that served it last and holds its KV
    closed: bool = False


class Gateway:
    def __init__(
        self,
        renderer: Renderer,
        generator: Generator,
        routes: Routes,
        journal: Journal,
        delivery: Delivery,
        *,
        max_length: int,
        call_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._renderer = renderer
        self._generator = generator
        self._routes = routes
        self._journal = journal
        self._delivery = delivery
        self._max_length = max_length
        self._call_seconds = call_seconds
        self._clock = clock
        self._executions: dict[str, Execution] = {}
        self._closed: dict[str, tuple[int, int]] = {}  # execution -> attempt, turns
        self._counters = {"calls": 0, "resubmitted": 0, "recomputed": 0, "attached": 0}

    def replay(self) -> None:
        """Go on where the journal ends. Calls that were in flight are gone with their connections; the harness's retry samples them anew."""
        replay = self._journal.replay()
        self._closed = replay.closed
        self._counters |= replay.counters
        for opened in replay.executions:
            self._executions[opened.execution] = Execution(opened)
        for entry in replay.turns:
            turn = entry.kept.turn
            execution = self._executions[turn.execution]
            execution.history.add(entry.kept)
            if not entry.answered:
                outcome: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                outcome.set_result(entry.kept.answer)
                request = entry.kept.request
                execution.calls[request] = Call(execution, request, turn.id, outcome, entry.kept.answer.prompt_tokens, sampling=False)
            if not entry.acknowledged:
                self._delivery.add(turn)
        for cell, epoch, route in replay.routes:
            self._routes.restore(cell, epoch, route)
        log.info("journal replayed", executions=len(replay.executions), turns=len(replay.turns), routes=self._routes.epochs)

    def stop(self) -> None:
        """Cancel what is being sampled; harnesses retry, executions stay open in the journal."""
        for execution in self._executions.values():
            for call in execution.calls.values():
                if call.sampling:
                    call.outcome.cancel()

    # What the conductor and the agents ask.

    async def open(self, opened: OpenExecution) -> None:
        """Raises `Refused` when this attempt is over, or a newer one is known."""
        name, attempt = opened.execution, opened.attempt
        known = self._executions.get(name)
        if known is not None and known.opened.attempt == attempt and not known.closed:
            if known.opened.key != opened.key:
                raise Refused(f"execution {name}: attempt {attempt} is open with another key")
            return
        newest = max(known.opened.attempt if known else -1, self._closed.get(name, (-1, 0))[0])
        if attempt <= newest:
            raise Refused(f"execution {name}: attempt {attempt} is over, attempt {newest} is the newest known")
        if known is not None:
            await self._stop(known)
        await self._journal.open_execution(opened)
        self._executions[name] = Execution(opened)

    async def close(self, name: str, attempt: int) -> Closed:
        """Returns when the conductor has every turn. Raises `Refused` when a newer attempt is open."""
        execution = self._executions.get(name)
        if execution is None:
            return Closed(name, self._closed.get(name, (0, 0))[1])
        current = execution.opened.attempt
        if attempt < current:
            raise Refused(f"execution {name}: attempt {current} is open, {attempt} is older")
        await self._stop(execution)
        await self._delivery.flush(name, current)
        turns = len(execution.history)
        await self._journal.close_execution(name, current, turns)
        if self._executions.get(name) is execution:
            del self._executions[name]
            self._closed[name] = (current, turns)
        return Closed(name, turns)

    def put_route(self, route: Route) -> None:
        if self._routes.put(route):
            self._journal.route(route.cell, route.epoch, route)
            log.info("cell routed", cell=route.cell, epoch=route.epoch, version=route.version)

    async def drain(self, cell: str, order: Drain) -> Drained:
        drained = await self._routes.drain(cell, order)
        self._journal.route(cell, order.epoch, None)
        log.info("cell drained", cell=cell, epoch=order.epoch, moved=drained.moved, moved_with_tokens=drained.moved_with_tokens)
        return drained

    def state(self) -> GatewayState:
        return GatewayState(
            live_calls=sum(execution.live for execution in self._executions.values()),
            calls=self._counters["calls"],
            resubmitted_calls=self._counters["resubmitted"],
            recomputed_tokens=self._counters["recomputed"],
            attached_retries=self._counters["attached"],
            routes=self._routes.epochs,
            condition=self._journal.condition,
        )

    # What a harness asks.

    def admit(self, name: str, key: str) -> Execution:
        """The open execution of this name and key. Raises `Fault`."""
        execution = self._executions.get(name)
        if execution is None or execution.closed:
            raise Fault(404, f"execution {name} is not open: it has ended, or the base URL is wrong")
        if not hmac.compare_digest(key.encode(errors="surrogateescape"), execution.opened.key.encode()):  # a header may hold any bytes
            raise Fault(401, f"this key is not that of execution {name}")
        if self._clock() > execution.opened.deadline:
            raise Fault(403, f"execution {name}: its time is over")
        return execution

    def call(self, execution: Execution, ask: Ask) -> Call:
        """The call that answers this request: the one that is under way or undelivered where this is a retry, else a new one. Raises `Fault`."""
        if not execution.opened.model:
            raise Fault(403, f"execution {execution.opened.execution}: has no model")
        request = request_digest(ask)
        known = execution.calls.get(request)
        if known is not None:
            self._counters["attached"] += 1
            self._journal.count({"attached": 1})
            return known
        if execution.live >= CALLS_PER_EXECUTION:
            raise Fault(503, f"this execution has {execution.live} calls under way, no more are taken", retry_after=2)
        if sum(other.live for other in self._executions.values()) >= CALLS:
            raise Fault(503, f"{CALLS} calls are under way, no more are taken", retry_after=5)
        turn = f"t{secrets.token_hex(10)}"
        outcome: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        call = execution.calls[request] = Call(execution, request, turn, outcome)
        execution.live += 1
        call.outcome = asyncio.create_task(self._answer(call, ask), name=turn)
        call.outcome.add_done_callback(lambda outcome: _ended(call, outcome))
        return call

    def delivered(self, call: Call) -> None:
        """The harness has the whole answer: the same request is now a new call."""
        if call.execution.calls.get(call.request) is call:
            del call.execution.calls[call.request]
            self._journal.answered(call.turn)

    async def count_tokens(self, ask: Ask) -> int:
        return len(await self._render(ask, lambda: self._renderer.prompt(ask.messages, ask.tools)))

    async def _answer(self, call: Call, ask: Ask) -> Answer:
        try:
            return await self._turn(call, ask)
        except asyncio.CancelledError as cause:
            if call.execution.closed:
                raise Fault(403, f"execution {call.execution.opened.execution} is closed") from cause
            raise

    async def _turn(self, call: Call, ask: Ask) -> Answer:
        """Render, sample, read, journal; then the harness may know."""
        execution = call.execution
        started = self._clock()
        call_seconds = execution.opened.call_seconds or self._call_seconds
        try:
            async with asyncio.timeout(call_seconds):
                place = execution.history.place(ask.messages, ask.tools)
                parent, context, prompt = await self._prompt(execution, place, ask)
                call.prompt_tokens = len(prompt)
                if len(prompt) >= self._max_length:
                    raise TooLong(len(prompt), self._max_length - 1)
                sampling = execution.opened.sampling
                room = self._max_length - len(prompt)
                wanted = min(sampling.max_tokens, room, ask.max_tokens if ask.max_tokens is not None else room)
                sampling = msgspec.structs.replace(sampling, max_tokens=wanted, stop=sampling.stop + ask.stop)
                generation = await self._generator.sample(call.turn, prompt, sampling, (execution.cell,))
        except TimeoutError as cause:
            raise Fault(503, f"no answer within {call_seconds:g} s", retry_after=5) from cause
        call.sampling = False
        execution.cell = generation.cell
        answer = self._read(call.turn, generation, ask, sampling.stop)
        turn = Turn(
            id=call.turn,
            execution=execution.opened.execution,
            attempt=execution.opened.attempt,
            parent=parent,
            agent=ask.agent,
            context_ids=tuple(context),
            pieces=tuple(piece.piece() for piece in generation.pieces),
            finish_reason=generation.finish_reason,
            started=started,
            ended=self._clock(),
            wire=ask.wire,
        )
        kept = Kept(turn, answer, place.after, place.given, call.request, generation.recomputed)
        counts = {"calls": 1, "resubmitted": int(len(turn.pieces) > 1), "recomputed": generation.recomputed}
        await self._journal.keep(kept, counts)
        for name, added in counts.items():
            self._counters[name] += added
        execution.history.add(kept)
        self._delivery.add(turn)
        return answer

    async def _prompt(self, execution: Execution, place: Place, ask: Ask) -> tuple[str, list[int], list[int]]:
        """Parent, given tokens after it, and the whole prompt."""
        history, renderer = execution.history, self._renderer
        if place.after:
            answered, last = history.answer(place.after).message, history.last_token(place.after)
            bridge = await self._render(ask, lambda: renderer.bridge(answered, last, place.new, ask.tools), place)
            if bridge is not None:
                return place.after, bridge, history.tokens(place.after) + bridge
        whole = await self._render(ask, lambda: renderer.prompt(ask.messages, ask.tools))
        return "", whole, whole

    async def _render[T](self, ask: Ask, work: Callable[[], T], place: Place | None = None) -> T:
        messages = ask.messages if place is None else place.new
        if sum(len(message.text) for message in messages) <= INLINE_CHARACTERS:
            return work()
        return await asyncio.to_thread(work)

    def _read(self, turn: str, generation: Generation, ask: Ask, stop: tuple[str, ...]) -> Answer:
        sampled = generation.sampled
        text, stop_text = _cut(self._renderer.text(sampled), stop)
        reading = self._renderer.read(text, ask.tools)
        calls = tuple(ToolCall(f"{turn}x{number}", name, arguments) for number, (name, arguments) in enumerate(reading.calls))
        finish: Finish = "stop"
        if calls:
            finish = "calls"
        elif stop_text:
            finish = "stop-text"
        elif generation.finish_reason == "length":
            finish = "length"
        return Answer(turn, reading.text, reading.reasoning, calls, finish, len(generation.prompt), len(sampled), stop_text)

    async def _stop(self, execution: Execution) -> None:
        """The key is dead from now; calls that are being sampled are cancelled, those that are complete are journaled."""
        execution.closed = True
        tasks = [call.outcome for call in execution.calls.values() if not call.outcome.done()]
        for call in list(execution.calls.values()):
            if call.sampling:
                call.outcome.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _cut(text: str, stop: tuple[str, ...]) -> tuple[str, str]:
    """Text before the first stop string, and that string. The tokens stay as sampled."""
    found = [(position, string) for string in stop if string and (position := text.find(string)) >= 0]
    if not found:
        return text, ""
    position, string = min(found)
    return text[:position], string


def _ended(call: Call, outcome: asyncio.Future[Answer]) -> None:
    """A call that failed is forgotten: its retry starts anew."""
    call.execution.live -= 1
    failure = None if outcome.cancelled() else outcome.exception()
    if (outcome.cancelled() or failure is not None) and call.execution.calls.get(call.request) is call:
        del call.execution.calls[call.request]
    if failure is not None and not isinstance(failure, Fault):
        log.error("a call failed", turn=call.turn, traceback="".join(traceback.format_exception(failure)))

"""Open executions and their model calls: each call becomes one journaled turn, whatever happens to engines and connections meanwhile."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from tidemill.telemetry.logs import Log
from tidemill.wire.gateway import Closed, Drain, Drained, GatewayState, OpenExecution, Route
from tidemill.wire.http import Refused
from tidemill_rollout.gateway.answering import Answering
from tidemill_rollout.gateway.conversation import Answer, Ask, Away, Fault
from tidemill_rollout.gateway.delivery import Delivery
from tidemill_rollout.gateway.execution import Call, Execution
from tidemill_rollout.gateway.generation import Generator
from tidemill_rollout.gateway.journal import REMEMBERED, Journal
from tidemill_rollout.gateway.render import Renderer
from tidemill_rollout.gateway.repeated import Parse, Reading, Requests
from tidemill_rollout.gateway.routing import Routes
from tidemill_rollout.gateway.tally import Tally
from tidemill_rollout.harness.presets import identify_of

CALLS_PER_EXECUTION = 32
"""Live calls of one execution; a harness that floods gets 503 for what exceeds it."""

CALLS = 12_000
"""Live calls of one gateway."""

WAITING = 10_000
"""Of these, calls that wait for a cell. What exceeds it is told to come again."""

FORGOTTEN_SECONDS = 3600.0
"""Beyond an execution's deadline, after which none of its calls is taken."""

log = Log(__name__)


class Gateway:
    def __init__(
        self,
        renderer: Renderer,
        generator: Generator,
        routes: Routes,
        journal: Journal,
        delivery: Delivery,
        tally: Tally,
        *,
        max_length: int,
        call_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._routes = routes
        self._journal = journal
        self._delivery = delivery
        self.tally = tally
        self._clock = clock
        self._executions: dict[str, Execution] = {}
        self._closed: dict[str, tuple[int, int]] = {}  # execution -> attempt, turns
        self._counters = {"calls": 0, "resubmitted": 0, "recomputed": 0, "attached": 0}
        self._requests = Requests()
        self._live = 0
        self._stopping = False
        self._answering = Answering(renderer, generator, journal, delivery, tally, self._counters, max_length, call_seconds, clock)

    def replay(self) -> None:
        """Go on where the journal ends. Calls that were in flight are gone with their connections; the harness's retry samples them anew."""
        replay = self._journal.replay()
        self._closed = replay.closed
        self._counters |= replay.counters  # in place: shared
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
        """Cancel what is being sampled, and begin nothing new; harnesses retry, executions stay open in the journal."""
        self._stopping = True
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
        log.info("execution opened", execution=name, attempt=attempt)

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
            self._closed.pop(name, None)
            self._closed[name] = (current, turns)
            if len(self._closed) > REMEMBERED:
                del self._closed[next(iter(self._closed))]
            self._requests.forget(name)
            log.info("execution closed", execution=name, attempt=current, turns=turns)
        return Closed(name, turns)

    async def close_forgotten(self) -> None:
        """Close what should long have been: the conductor gave up closing it, or was told of other gateways since."""
        now = self._clock()
        late = [one for one in self._executions.values() if now > one.opened.deadline + FORGOTTEN_SECONDS]
        for execution in late:
            log.warning("an execution was never closed", execution=execution.name, attempt=execution.opened.attempt)
            await self.close(execution.name, execution.opened.attempt)

    def put_route(self, route: Route) -> None:
        if self._routes.put(route):
            self._journal.route(route.cell, route.epoch, route)
            log.info("cell routed", cell=route.cell, epoch=route.epoch, version=route.version)

    async def drain(self, cell: str, order: Drain) -> Drained:
        drained = await self._routes.drain(cell, order)
        self._journal.route(cell, order.epoch, None)
        log.info("cell drained", cell=cell, epoch=order.epoch, moved=drained.moved, moved_with_tokens=drained.moved_with_tokens)
        return drained

    @property
    def open_executions(self) -> int:
        return len(self._executions)

    def state(self) -> GatewayState:
        return GatewayState(
            live_calls=self._live,
            calls=self._counters["calls"],
            resubmitted_calls=self._counters["resubmitted"],
            recomputed_tokens=self._counters["recomputed"],
            attached_retries=self._counters["attached"],
            routes=self._routes.epochs,
            condition=self._journal.condition,
        )

    # What a harness asks.

    def knows(self, name: str) -> bool:
        return name in self._executions

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

    def read(self, execution: Execution, parse: Parse, elements: str, raw: bytes, headers: Mapping[str, str]) -> Reading:
        """A request's body, in the words of the wire that `parse` knows. Raises `Fault`."""
        if not execution.opened.model:
            raise Fault(403, f"execution {execution.name}: has no model")
        if execution.closed:  # while the body came in
            raise Fault(403, f"execution {execution.name} is closed")
        try:
            reading = self._requests.read(execution.name, execution.history, parse, elements, raw, headers)
        except RecursionError as cause:  # just shallow enough to be read, too deep to be written again
            raise Fault(400, "the request is nested too deep") from cause
        return _identified(reading, execution.opened.harness, headers)

    def call(self, execution: Execution, reading: Reading) -> Call:
        """The call that answers this request: the one that is under way or undelivered where this is a retry, else a new one. Raises `Fault`."""
        request = reading.digest
        known = execution.calls.get(request)
        if known is not None:
            self._counters["attached"] += 1
            self._journal.count({"attached": 1})
            return known
        if self._stopping:
            raise Away("the gateway is stopping")
        if execution.live >= CALLS_PER_EXECUTION:
            raise Fault(503, f"this execution has {execution.live} calls under way, no more are taken", retry_after=2)
        if self._live >= CALLS or self._routes.waiting >= WAITING:
            raise Fault(503, f"{self._live} calls are under way, {self._routes.waiting} of them wait: no more are taken", retry_after=5)
        turn = f"t{secrets.token_hex(10)}"
        outcome: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        call = execution.calls[request] = Call(execution, request, turn, outcome)
        execution.live += 1
        self._live += 1
        call.outcome = asyncio.create_task(self._answering.answer(call, [reading]), name=turn)
        call.outcome.add_done_callback(lambda outcome: self._ended(call, outcome))
        return call

    def acknowledge(self, execution: Execution, relayed: str) -> None:
        """A sandbox's relay says that it has passed this answer on. That it was sent to the relay says nothing: the way there may lose it."""
        for call in [call for call in execution.calls.values() if relayed in call.relayed]:
            self.delivered(call)

    def delivered(self, call: Call) -> None:
        """The harness has the whole answer: the same request is now a new call."""
        if call.execution.calls.get(call.request) is call:
            del call.execution.calls[call.request]
            self._journal.answered(call.turn)

    async def count_tokens(self, ask: Ask) -> int:
        return await self._answering.count_tokens(ask)

    async def _stop(self, execution: Execution) -> None:
        """The key is dead from now; calls that are being sampled are cancelled, those that are complete are journaled."""
        execution.closed = True
        tasks = [call.outcome for call in execution.calls.values() if not call.outcome.done()]
        for call in list(execution.calls.values()):
            if call.sampling:
                call.outcome.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, call: Call, outcome: asyncio.Future[Answer]) -> None:
        """A call that failed is forgotten: its retry starts anew."""
        call.execution.live -= 1
        self._live -= 1
        failure = None if outcome.cancelled() else outcome.exception()
        if outcome.cancelled() or failure is not None:
            self.tally.failed += 1
            if call.execution.calls.get(call.request) is call:
                del call.execution.calls[call.request]
        if failure is not None and not isinstance(failure, Fault):
            log.error("a call failed", execution=call.execution.name, turn=call.turn, traceback="".join(traceback.format_exception(failure)))


def _identified(reading: Reading, harness: str, headers: Mapping[str, str]) -> Reading:
    """Who calls, by the rule of the harness's preset."""
    found = identify_of(harness)(headers, reading.ask)
    ask = msgspec.structs.replace(reading.ask, agent=found.agent, parent_agent=found.parent_agent, summary=found.summary)
    return replace(reading, ask=ask)

"""The life of one execution: key, harness, turns, score."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tidemill.telemetry.logs import Log, about
from tidemill.trajectory.files import write_trajectory
from tidemill.trajectory.records import FORMAT_VERSION, Judgement, Trajectory, Turn
from tidemill.trajectory.tree import BrokenTree, grow
from tidemill.wire.gateway import GatewayClient, OpenExecution
from tidemill.wire.http import Unreachable, WireError
from tidemill_rollout.conductor import executions
from tidemill_rollout.conductor.conditions import CRIPPLING, FULL_DISK, PAUSING, PROBE_SECONDS, SANDBOXES
from tidemill_rollout.conductor.executions import Execution
from tidemill_rollout.conductor.sandboxes import Evaluation, EvaluatorCrashed, HarnessEnd, SandboxBroken, Sandboxes
from tidemill_rollout.conductor.settings import Settings
from tidemill_rollout.conductor.store import Database

GATEWAY_SECONDS = 180.0
"""How long a life waits for a gateway that is away: longer than its restart with a full journal."""

RETRY_SECONDS = 0.5
MOST_EVALUATIONS = 3

T = TypeVar("T")
_log = Log(__name__)


class Keeper(Protocol):
    """Makes changes durable, however long that takes: a full disk holds the life up, it loses nothing."""

    async def commit(self, change: Callable[[Database], T]) -> T: ...
    async def written(self, write: Callable[[], object]) -> None: ...

    def hindered(self, since: float, by: tuple[str, ...] = PAUSING) -> bool:
        """Whether something held the job back, now or at some time after `since`."""
        ...

    async def room(self) -> None:
        """Return when the disk has room."""
        ...


@dataclass(frozen=True, slots=True)
class Lives:
    settings: Settings
    keeper: Keeper
    gateway: GatewayClient
    sandboxes: Sandboxes
    trajectories: Path
    clock: Callable[[], float]

    async def live(self, execution: Execution) -> None:
        """From Running or Evaluating to Scored, Dropped, or Pending again.

        Whatever one execution meets, others go on: what nobody has thought of fails its attempt, and is in the log. A broken store is
        everybody's: then giving up raises as well.
        """
        with about(execution=execution.id, attempt=execution.attempt):
            await self._live_or_give_up(execution)

    async def _live_or_give_up(self, execution: Execution) -> None:
        try:
            await self._live(execution)
        except Exception as trouble:
            _log.exception("an execution met what nobody has thought of", execution=execution.id, attempt=execution.attempt)
            await self._give_up(execution, f"unexpected: {trouble!r}")

    async def _live(self, execution: Execution) -> None:
        if execution.state == "Running":
            began = self.clock()
            _log.info("harness starts", task=execution.task, group=execution.group)
            failure, ended = await self._play(execution)
            if failure and self.keeper.hindered(began):
                _log.warning("attempt hindered, it begins anew", execution=execution.id, attempt=execution.attempt, reason=failure)
                await self.keeper.commit(lambda db: executions.begin_anew(db, execution.id, execution.attempt))
                return
            if failure:
                _log.warning("attempt failed", execution=execution.id, attempt=execution.attempt, reason=failure)
                await self.keeper.commit(lambda db: executions.requeue(db, execution.id, execution.attempt, failure, self.clock()))
                return
            if self.settings.drop_at_group_timeout and self.clock() >= self._group_ends(execution):
                await self.keeper.commit(lambda db: executions.drop(db, execution.id, "group time-out", self.clock()))
                return
            if not await self.keeper.commit(lambda db: executions.evaluate(db, execution.id, execution.attempt, ended)):
                return
            _log.info("harness ended", how=ended, seconds=round(self.clock() - began, 3))
        else:
            ended = execution.reason
        await self._judge(execution, ended)

    async def end(self, execution: str, attempt: int) -> None:
        """After `live` was cancelled for good. A key that stays is worth nothing without a harness."""
        await self._discard(execution, attempt)
        await self.close(execution, attempt)

    async def close(self, execution: str, attempt: int) -> None:
        """Kill the key, without insisting."""
        try:
            await self.gateway.close(execution, attempt)
        except WireError as trouble:
            _log.warning("key not closed", execution=execution, attempt=attempt, reason=str(trouble))

    async def _give_up(self, execution: Execution, reason: str) -> None:
        """The harness begins anew, a few times; what fails after it is dropped, because it would fail again."""

        def give_up(db: Database) -> str:
            known = executions.one(db, execution.id)
            if known is not None and known.attempt == execution.attempt:
                if known.state == "Running":
                    executions.requeue(db, execution.id, execution.attempt, reason, self.clock())
                elif known.state == "Evaluating":
                    executions.drop(db, execution.id, reason, self.clock())
            after = executions.one(db, execution.id)
            return "" if after is None else after.state

        if await self.keeper.commit(give_up) == "Dropped":
            await self.end(execution.id, execution.attempt)

    async def _discard(self, execution: str, attempt: int) -> None:
        """What stays takes room, and nothing else."""
        try:
            await self.sandboxes.discard(execution, attempt)
        except Exception:
            _log.exception("an execution's files were not removed", execution=execution, attempt=attempt)

    async def _play(self, execution: Execution) -> tuple[str, str]:
        """Run the harness; why this attempt counts for nothing, or empty, and how it ended. At its time-out it ends with the work it has."""
        key = secrets.token_urlsafe(24)
        seconds = min(self.settings.execution_seconds, self._group_ends(execution) - self.clock())
        opened = OpenExecution(
            execution=execution.id,
            attempt=execution.attempt,
            key=key,
            harness=self.settings.harness,
            sampling=self.settings.sampling,
            deadline=self.clock() + seconds + GATEWAY_SECONDS,
            call_seconds=self.settings.call_seconds,
        )
        try:
            await self._insist(lambda: self.gateway.open(opened))
            began = self.clock()
            end = await self.sandboxes.run(execution.id, execution.attempt, execution.task, key, max(0.0, seconds))
            hindered = self.keeper.hindered(began, CRIPPLING)
            await self._insist(lambda: self.gateway.close(execution.id, execution.attempt))
        except WireError as trouble:
            return f"gateway failed: {trouble}", ""
        except SandboxBroken as trouble:
            return f"sandbox failed: {trouble}", ""
        if hindered and (end.timed_out or end.exit_code != 0):
            return "the harness could not do its work while the job was held back", ""
        return failure_of(end, len(await self.keeper.commit(lambda db: executions.turns(db, execution.id)))), ended_how(end)

    async def _judge(self, execution: Execution, ended: str) -> None:
        turns = await self.keeper.commit(lambda db: executions.turns(db, execution.id))
        score, judged = await self._score(execution, turns)
        trajectory = Trajectory(
            FORMAT_VERSION,
            execution.id,
            execution.group,
            execution.task,
            execution.attempt,
            execution.dispatched_version,
            score,
            turns,
            ended,
            judged,
        )
        await self.keeper.written(lambda: write_trajectory(self.trajectories, trajectory))

        def end(db: Database) -> None:
            executions.note_size(db, execution.id, turns)
            if score is None:
                executions.drop(db, execution.id, judged.reason, self.clock())
            else:
                executions.score(db, execution.id, execution.attempt, score, judged.reason, self.clock(), trains=judged.valid)

        await self.keeper.commit(end)
        _log.info("execution judged", score=score, reason=judged.reason, turns=len(turns))
        if score is None:
            await self._discard(execution.id, execution.attempt)

    async def _score(self, execution: Execution, turns: tuple[Turn, ...]) -> tuple[float | None, Judgement]:
        """No score is not a zero: then the execution is dropped."""
        try:
            grow(turns)
        except BrokenTree as trouble:
            return None, Judgement(False, f"broken trajectory: {trouble}", evaluations=0)
        work = self.sandboxes.work(execution.id, execution.attempt)
        try:
            evaluation, asked = await self._evaluate(execution)
        except EvaluatorCrashed as trouble:
            return None, Judgement(False, f"evaluator failed: {trouble}", work, evaluations=MOST_EVALUATIONS)
        if evaluation.score is None or not math.isfinite(evaluation.score):
            return None, Judgement(False, f"no valid score: {evaluation.score}; {evaluation.reason}", work, evaluation.digest, asked)
        return evaluation.score, Judgement(evaluation.valid, evaluation.reason, work, evaluation.digest, asked)

    async def _evaluate(self, execution: Execution) -> tuple[Evaluation, int]:
        """And how often the evaluator was asked for it."""
        crashes = 0
        while True:
            await self.keeper.room()
            began = self.clock()
            try:
                return await self.sandboxes.evaluate(execution.id, execution.attempt, execution.task), crashes + 1
            except EvaluatorCrashed as trouble:
                unstarted = self.keeper.hindered(began, (SANDBOXES,))
                crashes += not unstarted and not self.keeper.hindered(began, FULL_DISK)
                _log.warning("evaluator crashed", execution=execution.id, evaluation=crashes, reason=str(trouble))
                if crashes == MOST_EVALUATIONS:
                    raise
                if unstarted:
                    await asyncio.sleep(PROBE_SECONDS)

    async def _insist[A](self, call: Callable[[], Awaitable[A]]) -> A:
        """Repeat an idempotent call until somebody answers, for at most `GATEWAY_SECONDS` in which nothing holds the job back."""
        give_up = self.clock() + GATEWAY_SECONDS
        while True:
            try:
                return await call()
            except Unreachable:
                now = self.clock()
                if self.keeper.hindered(now):
                    give_up = now + GATEWAY_SECONDS
                elif now >= give_up:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    def _group_ends(self, execution: Execution) -> float:
        started = self.clock() if execution.group_started is None else execution.group_started
        return started + self.settings.group_seconds


def failure_of(end: HarnessEnd, turns: int) -> str:
    """Why the infrastructure is to blame, or empty: then the work that exists is scored, whatever the exit code.

    A harness that fails without ever having called the model says nothing about the policy.
    """
    if turns or (end.exit_code == 0 and not end.timed_out):
        return ""
    last = end.log_tail.strip().splitlines()[-1:]
    return f"harness never called the model: it {ended_how(end)}{f', last line: {last[0][:300]}' if last else ''}"


def ended_how(end: HarnessEnd) -> str:
    return f"was stopped ({end.stopped})" if end.stopped else "ran into its time-out" if end.timed_out else f"ended with code {end.exit_code}"

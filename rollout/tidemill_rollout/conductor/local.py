"""Harnesses and evaluators on this machine, by the names of their tasks."""

from __future__ import annotations

from tidemill_rollout.conductor.sandboxes import EvaluatorCrashed, SandboxBroken
from tidemill_rollout.harness.presets import HarnessError
from tidemill_rollout.sandbox.execution import Evaluation, EvaluatorFailed, HarnessEnd, LocalExecutions
from tidemill_rollout.sandbox.mounts import Exposed
from tidemill_rollout.sandbox.tree import TreeError
from tidemill_rollout.tasks.source import Task


class LocalSandboxes:
    def __init__(self, executions: LocalExecutions, tasks: dict[str, Task]) -> None:
        self._executions = executions
        self._tasks = tasks

    async def run(self, execution: str, attempt: int, task: str, key: str, deadline_seconds: float) -> HarnessEnd:
        try:
            return await self._executions.run(execution, attempt, self._tasks[task], key, deadline_seconds)
        except (OSError, ValueError, TreeError, Exposed, HarnessError) as trouble:
            raise SandboxBroken(str(trouble)) from trouble

    async def evaluate(self, execution: str, attempt: int, task: str) -> Evaluation:
        try:
            return await self._executions.evaluate(execution, attempt, self._tasks[task])
        except (OSError, ValueError, TreeError, Exposed, EvaluatorFailed) as trouble:
            raise EvaluatorCrashed(str(trouble)) from trouble

    def work(self, execution: str, attempt: int) -> str:
        return f"executions/{execution}/{attempt}/work"

    async def discard(self, execution: str, attempt: int) -> None:
        await self._executions.discard(execution, attempt)

    async def stop_all(self) -> None:
        await self._executions.stop_all()

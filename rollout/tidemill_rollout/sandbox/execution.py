"""Executions on this machine: a harness at work on a task in a jail, then its evaluation. The conductor calls nothing else of this folder.

Each attempt has its folder W/executions/<id>/<attempt>/: work/ (the harness's /app), logs/ (its /logs), harness.log,
evaluation/{work,logs,output.log} and evaluation.json, its score. Once it is scored or discarded, what is large in it goes.
"""

from __future__ import annotations

import asyncio
import re
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tidemill.api.model import amount
from tidemill.api.rljob import RLJob
from tidemill.telemetry.logs import Log
from tidemill_rollout.harness import presets
from tidemill_rollout.sandbox import tree
from tidemill_rollout.sandbox.process import Limits, ProcessSandbox
from tidemill_rollout.scoring import evaluator
from tidemill_rollout.scoring.evaluator import Evaluation, EvaluatorFailed
from tidemill_rollout.tasks.source import BUILD_FILES, Task

__all__ = ["Evaluation", "EvaluatorFailed", "HarnessEnd", "LocalExecutions"]

KEEP_BYTES = 2**20
"""Of a finished attempt's work and logs, each: more than that is removed, so that a long job does not fill the disk."""

log = Log(__name__)

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class HarnessEnd:
    exit_code: int
    timed_out: bool
    seconds: float
    log_tail: str
    stopped: str = ""  # why it was killed before its time: a limit, or `stop_all`


class LocalExecutions:
    def __init__(self, job: RLJob, workdir: Path, gateway_socket: Path, unsafe: bool = False) -> None:
        self._job = job
        self._folder = workdir / "executions"
        limits = Limits(memory_bytes=int(amount(job.spec.sandbox.resources.memory)))
        self._sandbox = ProcessSandbox(workdir, gateway_socket, unsafe, limits)

    def check(self) -> None:
        """To be called once, before anything else.

        Raises:
            SandboxUnavailable: this machine lets us make no jails; the text says what to install or allow.
            HarnessError: the manifest's harness cannot be started.
        """
        self._sandbox.check(presets.check(self._job).programs)

    async def run(self, execution: str, attempt: int, task: Task, key: str, deadline_seconds: float) -> HarnessEnd:
        """Run the harness to its end, at most `deadline_seconds` or the task's own time-out. On return nothing of it is alive."""
        folder = self._attempt(execution, attempt)
        await tree.remove(folder)
        if attempt > 1:
            await self.discard(execution, attempt - 1)
        for part in ("logs/agent", "logs/artifacts"):
            (folder / part).mkdir(parents=True)
        await _lay_out(task, folder / "work")
        (folder / "instruction.md").write_text(task.instruction, encoding="utf-8")
        address = self._sandbox.address()
        started = presets.launch(self._job, task, f"{address}/x/{execution}", key, folder / "instruction.md")
        ended = await self._sandbox.run(
            started,
            work=folder / "work",
            logs=folder / "logs",
            output=folder / "harness.log",
            seconds=min(deadline_seconds, task.agent_seconds),
            address=address,
        )
        for part in ("logs", "work"):  # an ordinary user's program may have taken our rights as well
            tree.open_up(folder / part)
        return HarnessEnd(ended.exit_code, ended.timed_out, ended.seconds, ended.tail, ended.stopped)

    async def evaluate(self, execution: str, attempt: int, task: Task) -> Evaluation:
        """Score what the harness left behind, then keep only what is small of it. Called again, it answers the same without the tests.

        Raises:
            EvaluatorFailed: there is no score; try again.
        """
        folder = self._attempt(execution, attempt)
        kept = folder / "evaluation.json"
        if kept.exists():
            return msgspec.json.decode(kept.read_bytes(), type=Evaluation)
        started = time.monotonic()
        evaluation = await evaluator.evaluate(self._sandbox, task, folder / "work", folder / "logs", folder / "evaluation")
        evaluation = replace(evaluation, seconds=time.monotonic() - started)
        fresh = folder / ".evaluation.json"
        fresh.write_bytes(msgspec.json.encode(evaluation))
        fresh.rename(kept)
        await self.discard(execution, attempt)
        return evaluation

    async def discard(self, execution: str, attempt: int) -> None:
        """Nobody will evaluate this attempt (again): remove what is large of it. Also for executions that are dropped. Best effort."""
        folder = self._attempt(execution, attempt)
        for part in ("evaluation/work", "work", "logs", "evaluation/logs", "unsafe", "evaluation/unsafe"):
            try:
                small = part != "evaluation/work" and await asyncio.to_thread(tree.measure, folder / part, KEEP_BYTES) <= KEEP_BYTES
                if not small:
                    await tree.remove(folder / part)
            except (tree.TreeError, OSError) as problem:
                log.warning("not removed", execution=execution, attempt=attempt, part=part, reason=str(problem))

    async def stop_all(self) -> None:
        """Kill every harness and evaluator and start no more. A `run` returns with `stopped`, an `evaluate` raises `EvaluatorFailed`."""
        await self._sandbox.stop_all()

    def _attempt(self, execution: str, attempt: int) -> Path:
        if not _SAFE.fullmatch(execution):
            raise ValueError(f"execution {execution!r}: not a name for a folder")
        return self._folder / execution / str(attempt)


async def _lay_out(task: Task, work: Path) -> None:
    """The task's files, but for what only describes an image. `environment` may be a link: the work is always a folder of its own."""
    if task.files.is_dir():
        await tree.copy(task.files.resolve(), work)
        work.chmod(work.stat().st_mode | stat.S_IRWXU)
        for path in (work / name for name in BUILD_FILES):
            if path.is_symlink() or path.is_file():  # a folder of such a name describes no image
                path.unlink()
    else:
        work.mkdir()

"""Scores an execution's work with its task's tests: in a fresh jail without a way out, on a copy, after the harness is dead."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from tidemill_rollout.sandbox import tree
from tidemill_rollout.sandbox.mounts import LOGS, TESTS
from tidemill_rollout.sandbox.process import Launch, ProcessSandbox
from tidemill_rollout.scoring.reward import RewardError, read_reward
from tidemill_rollout.tasks.source import Task

DIGEST_BYTES = 256 * 2**20
"""Work of more is not read for its digest: that would take longer than a second."""


class EvaluatorFailed(Exception):
    """The evaluator did not come to a score: not a zero. The caller tries again."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    score: float
    reason: str  # what it rests on, for people
    seconds: float
    valid: bool = True  # False: there was nothing that could be judged. The score counts, but what led to it is not trained
    digest: str = ""  # of the work that was judged; "" where that is too large to be read


async def evaluate(sandbox: ProcessSandbox, task: Task, work: Path, logs: Path, folder: Path) -> Evaluation:
    """Score `work`. `logs` are the harness's, which tests may read; `folder` is made anew and takes the copy, the tests' logs and their output.

    Work that the harness left in a shape that cannot be copied is worth nothing: it is a zero, or a policy could have its bad scores dropped.
    The harness may have been ended by its time-out: what exists is judged.

    Raises:
        EvaluatorFailed: the tests ran out of time, broke a limit or wrote no valid reward; or this machine could not copy the work.
    """
    try:
        await tree.remove(folder)
        (folder / "logs" / "verifier").mkdir(parents=True)
        unusable = await _copy(work, folder / "work", sandbox.unsafe)
    except (tree.TreeError, OSError) as problem:
        raise EvaluatorFailed(f"task {task.name}: the work could not be copied: {problem}") from problem
    if unusable:
        return Evaluation(0.0, f"the work cannot be evaluated: {unusable}", 0.0, valid=False)
    digest = await asyncio.to_thread(tree.digest, folder / "work", DIGEST_BYTES)  # before the tests can change it
    launch = Launch(
        command=("bash", f"{TESTS}/test.sh"),
        environment=dict((*task.environment, *task.verifier_environment)),
        files={TESTS: task.tests.resolve(), **_logs(logs, folder / "nothing")},
    )
    output = folder / "output.log"
    ended = await sandbox.run(launch, work=folder / "work", logs=folder / "logs", output=output, seconds=task.verifier_seconds)
    if ended.timed_out or ended.stopped:
        why = ended.stopped or f"not done within {task.verifier_seconds:g} s"
        raise EvaluatorFailed(f"task {task.name}: tests: {why}; their output ends with {ended.tail[-300:]!r}")
    try:
        score = read_reward(folder / "logs" / "verifier")
    except RewardError as problem:
        raise EvaluatorFailed(
            f"task {task.name}: tests ended with exit code {ended.exit_code}: {problem}; their output ends with {ended.tail[-300:]!r}"
        ) from problem
    return Evaluation(score, f"tests ended with exit code {ended.exit_code}", ended.seconds, digest=digest)


async def _copy(work: Path, target: Path, removable: bool) -> str:
    """What is wrong with the work, or empty. Raises `TreeError` where this machine is to blame. `removable`: the harness could remove the folder."""
    if removable and not tree.is_folder(work):
        return "the harness removed its work folder"
    try:
        await tree.copy(work, target, ours=True)
    except tree.TreeError as problem:
        if problem.by_itself:
            return str(problem)
        raise
    return ""


def _logs(logs: Path, nothing: Path) -> dict[str, Path]:
    """Where in the tests' jail, and what of the harness's logs is shown there: only what is a folder still, never what a link leads to."""
    nothing.mkdir()
    shown = {}
    for name in ("agent", "artifacts"):
        tree.open_up(logs / name)
        shown[f"{LOGS}/{name}"] = logs / name if tree.is_folder(logs / name) else nothing
    return shown

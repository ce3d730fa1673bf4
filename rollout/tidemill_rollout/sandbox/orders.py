"""What a sandbox pod is told to run, and how much of it."""

from __future__ import annotations

import math

from tidemill_rollout.sandbox.enter import Order
from tidemill_rollout.sandbox.mounts import TESTS
from tidemill_rollout.sandbox.process import Launch, Limits
from tidemill_rollout.tasks.source import Task

MEMORY_SHARE = 0.9
"""Of the pod's memory: a program that takes more is ended while its work can still be saved; at the whole, the kernel ends the pod."""

WORK_BYTES = 1536 * 2**20
"""Of an archive of work: more than what is stopped for its size, so that what was stopped can still be brought back."""

LOGS_BYTES = 64 * 2**20


def harness_order(task: Task, launch: Launch, limits: Limits) -> Order:
    seconds = 0.0 if math.isinf(task.agent_seconds) else task.agent_seconds
    return _order(launch.command, dict(launch.environment), seconds, ["app", "logs"], WORK_BYTES, limits, launch.hold_seconds)


def evaluator_order(task: Task, limits: Limits) -> Order:
    environment = dict((*task.environment, *task.verifier_environment))
    return _order(("bash", f"{TESTS}/test.sh"), environment, task.verifier_seconds, ["logs"], LOGS_BYTES, limits, hold=0.0)


def _order(
    command: tuple[str, ...], environment: dict[str, str], seconds: float, bring: list[str], bring_bytes: int, limits: Limits, hold: float
) -> Order:
    return Order(
        command=list(command),
        environment=environment,
        seconds=seconds,
        bring=bring,
        bring_bytes=bring_bytes,
        disk_bytes=limits.disk_bytes,
        memory_bytes=int(limits.memory_bytes * MEMORY_SHARE),
        processes=limits.processes,
        output_bytes=limits.output_bytes,
        hold=hold,
        until=0.0,
    )

"""What the conductor asks of whoever runs harnesses and evaluators."""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

from aiohttp import web

from tidemill.wire.gateway import GatewayClient


class HarnessEnd(Protocol):
    @property
    def exit_code(self) -> int: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def stopped(self) -> str: ...  # why it was killed before its time, or empty
    @property
    def log_tail(self) -> str: ...


class Evaluation(Protocol):
    @property
    def score(self) -> float | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def valid(self) -> bool: ...  # False: there was nothing that could be judged, what led to the score is not trained
    @property
    def digest(self) -> str: ...  # of what was judged, or empty


class EvaluatorCrashed(Exception):
    """The evaluator itself did not work: not a zero. It is asked again."""


class SandboxBroken(Exception):
    """The sandbox did not come up: the infrastructure's failure, not the agent's."""


class Sandboxes(Protocol):
    async def run(self, execution: str, attempt: int, task: str, key: str, deadline_seconds: float) -> HarnessEnd:
        """Until the harness and all its children are dead, which they are after `deadline_seconds` or when this call is cancelled.

        Raises:
            SandboxBroken
        """
        ...

    async def evaluate(self, execution: str, attempt: int, task: str) -> Evaluation:
        """Raises `EvaluatorCrashed`."""
        ...

    def work(self, execution: str, attempt: int) -> str:
        """Where the work of this attempt lies, or lay: below the job's work folder."""
        ...

    async def discard(self, execution: str, attempt: int) -> None:
        """Nobody will evaluate this attempt (again)."""
        ...

    async def stop_all(self) -> None: ...


@runtime_checkable
class Remote(Protocol):
    """Sandboxes that are not on this machine: their files travel through the gateway, and so over routes of the conductor."""

    async def begin(self, gateway: GatewayClient, tasks: asyncio.TaskGroup) -> list[web.RouteDef]:
        """Raises `SandboxUnavailable`."""
        ...

    @property
    def trouble(self) -> str:
        """Why sandboxes do not start at present, or empty."""
        ...

"""One open execution, and its model calls that are live, or answered and not yet delivered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tidemill.wire.gateway import OpenExecution
from tidemill_rollout.gateway.conversation import Answer
from tidemill_rollout.gateway.turns import History


@dataclass(slots=True, eq=False)
class Call:
    """One model call: live, or answered and not yet delivered in full."""

    execution: Execution
    request: bytes
    turn: str
    outcome: asyncio.Future[Answer]
    prompt_tokens: int = 0
    sampling: bool = True  # until the answer is complete; then it can no longer be cancelled, only journaled
    relayed: set[str] = field(default_factory=set)  # ids that a sandbox's relay gave it: it says when the harness has the answer


@dataclass(slots=True, eq=False)
class Execution:
    opened: OpenExecution
    history: History = field(default_factory=History)
    calls: dict[bytes, Call] = field(default_factory=dict)  # by digest of the request
    live: int = 0
    requests: int = 0  # that are being received or answered
    cell: str = ""  # that served it last and holds its KV
    closed: bool = False

    @property
    def name(self) -> str:
        return self.opened.execution

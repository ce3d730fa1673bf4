"""Messages of the cell agent: a role and its epoch go in, the acknowledged state comes out."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tidemill.wire.http import Client


class Role(StrEnum):
    ROLLOUT = "Rollout"
    TRAINING = "Training"


class CellKind(StrEnum):
    CORE = "Core"
    SATELLITE = "Satellite"
    STANDALONE = "Standalone"


class CellPhase(StrEnum):
    STARTING = "Starting"  # children are coming up, or weights are not yet verified
    READY = "Ready"  # acknowledged role and epoch are in effect
    FLIPPING = "Flipping"
    FAILED = "Failed"  # a child died five times; `reason` has its last log lines
    LEAVING = "Leaving"  # its agent was told to end: it hands over what it has and takes nothing more


class RoleOrder(msgspec.Struct, frozen=True):
    """`PUT /v1/role`. 202; an older epoch answers 409; the same epoch again is a no-op."""

    role: Role
    epoch: int
    destinations: tuple[str, ...] = ()  # cells that take over calls in flight, those that stay in rollout longest first


class Flip(msgspec.Struct, frozen=True):
    """One change of role as it happened. `phases` are seconds by name, in the order they ran."""

    cell: str
    to: Role
    epoch: int
    started: float  # unix seconds
    seconds: float
    phases: dict[str, float]
    calls_in_flight: int = 0  # calls that were moved away, having sampled at least one token here


class CellState(msgspec.Struct, frozen=True):
    """`GET /v1/state?after=N` (long poll) and what the agent reports to `POST conductor/v1/cells/{cell}/state`."""

    cell: str
    kind: CellKind
    ordinal: int
    url: str  # of the agent
    phase: CellPhase
    role: Role  # acknowledged
    epoch: int  # acknowledged
    capacity: int  # C_e, executions served at once
    policy_version: int = -1  # of the weights the engine has loaded and verified; -1 before the first
    weights_digest: str = ""  # of those weights, computed from what the engine has loaded
    trainer_url: str = ""
    trainer_incarnation: str = ""  # changes when the trainer child is restarted
    engine_incarnation: str = ""
    reason: str = ""
    last_flip: Flip | None = None
    live_calls: int = 0  # that it serves now; no news by itself, it is told with what is
    sequence: int = 0


class RankState(msgspec.Struct, frozen=True):
    """`POST /v1/ranks` at the agent of rank 0, by each of the cell's other nodes several times a second. Answered by a `RankOrder`."""

    cell: str
    rank: int  # from 1
    url: str  # of its agent
    role: Role  # acknowledged by this rank
    epoch: int  # acknowledged by this rank; -1: none yet
    healthy: bool  # its children serve
    incarnation: str  # of its children
    leaving: bool = False
    reason: str = ""


class RankOrder(msgspec.Struct, frozen=True):
    """What rank 0 holds, and so all ranks of the cell; epoch -1: nothing yet."""

    role: Role
    epoch: int


class CellClient(Client):
    async def report_rank(self, state: RankState) -> RankOrder:
        return await self.call("POST", "/v1/ranks", RankOrder, state)

    async def put_role(self, order: RoleOrder) -> CellState:
        return await self.call("PUT", "/v1/role", CellState, order)

    async def state(self, after: int = -1, wait_seconds: float = 20.0) -> CellState:
        query = {"after": str(after), "wait": f"{wait_seconds:g}"}
        return await self.call("GET", "/v1/state", CellState, query=query, deadline_seconds=wait_seconds + 10.0)

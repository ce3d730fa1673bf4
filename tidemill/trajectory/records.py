"""TITO records: what was put into the policy, what it sampled, with log-probabilities and policy versions. One schema for wire, journal and files."""

from __future__ import annotations

import msgspec

FORMAT_VERSION = 1


class Piece(msgspec.Struct, frozen=True):
    """Tokens of one answer that one engine sampled in one go. The three lists are equally long."""

    cell: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]


class Turn(msgspec.Struct, frozen=True):
    """One finished model call. Its full prompt is the path of its ancestors' prompts and answers, then `context_ids`."""

    id: str
    execution: str
    attempt: int
    parent: str  # id of the turn it continues; "" for a root
    agent: str  # "" for the main agent, else the harness's own id of a sub-agent
    context_ids: tuple[int, ...]  # given tokens after the parent's last sampled token
    pieces: tuple[Piece, ...]  # sampled; more than one when the call moved between engines
    finish_reason: str
    started: float  # unix seconds
    ended: float
    wire: str  # "chat" | "messages" | "responses"

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        return tuple(t for piece in self.pieces for t in piece.token_ids)

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(p for piece in self.pieces for p in piece.logprobs)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(v for piece in self.pieces for v in piece.versions)


class Trajectory(msgspec.Struct, frozen=True):
    """All turns of one execution's last attempt, with its score: what is kept in `trajectories/` (msgpack, one file an execution)."""

    format: int
    execution: str
    group: int
    task: str
    attempt: int
    dispatched_version: int
    score: float | None
    turns: tuple[Turn, ...]

"""TITO records: what was put into the policy, what it sampled, with log-probabilities and policy versions. One schema for wire, journal and files."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.trajectory.columns import FLOAT, INT, Floats, Ints, joined, settle

FORMAT_VERSION = 2
"""1: numbers as lists. 2: as columns; turns have `parent_agent`, `summary`, `asked`, `given_by`, trajectories `ended`, `judged`. Both are read."""


class Piece(msgspec.Struct, frozen=True):
    """Tokens of one answer that one engine sampled in one go. The three columns are equally long."""

    cell: str
    token_ids: Ints
    logprobs: Floats
    versions: Ints

    def __post_init__(self) -> None:
        settle(self, token_ids=INT, logprobs=FLOAT, versions=INT)


class Turn(msgspec.Struct, frozen=True):
    """One finished model call. Its full prompt is the path of its ancestors' prompts and answers, then `context_ids`."""

    id: str
    execution: str
    attempt: int
    parent: str  # id of the turn it continues; "" for a root
    agent: str  # "" for the main agent, else the harness's own id of a sub-agent
    context_ids: Ints  # given tokens after the parent's last sampled token
    pieces: tuple[Piece, ...]  # sampled; more than one when the call moved between engines
    finish_reason: str
    started: float  # unix seconds
    ended: float
    wire: str  # "chat" | "messages" | "responses"
    parent_agent: str = ""  # who started that sub-agent: "" for the main agent
    summary: bool = False  # the harness asked for the summary that a compaction goes on from
    asked: dict[str, Any] = {}  # sampling parameters as the harness asked for them; the job's were used
    given_by: tuple[str, ...] = ()  # roles of the messages in `context_ids`, in their order

    def __post_init__(self) -> None:
        settle(self, context_ids=INT)

    @property
    def sampled(self) -> int:
        """How many tokens were sampled."""
        return sum(len(piece.token_ids) for piece in self.pieces)

    @property
    def sampled_ids(self) -> Ints:
        return joined(INT, (piece.token_ids for piece in self.pieces))

    @property
    def logprobs(self) -> Floats:
        return joined(FLOAT, (piece.logprobs for piece in self.pieces))

    @property
    def versions(self) -> Ints:
        return joined(INT, (piece.versions for piece in self.pieces))


class Judgement(msgspec.Struct, frozen=True):
    """What a score rests on. `work` and `digest` name what was judged: the work as it stood when the harness was dead."""

    valid: bool  # False: there was nothing that could be judged, or nobody who could: no token of this execution is trained
    reason: str  # for people
    work: str = ""  # folder or archive, below the job's work folder; it stays while it is small
    digest: str = ""  # of names and contents; "" where it was not taken
    evaluations: int = 1  # how often the evaluator was asked: it may fail


class Trajectory(msgspec.Struct, frozen=True):
    """All turns of one execution's last attempt, with its score: what is kept in `trajectories/` (msgpack, one file an execution)."""

    format: int
    execution: str
    group: int
    task: str
    attempt: int
    dispatched_version: int
    score: float | None  # None: dropped
    turns: tuple[Turn, ...]
    ended: str = ""  # how the harness ended, e.g. "time-out"
    judged: Judgement | None = None

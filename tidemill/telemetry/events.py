"""What happened in a job, as records: lines of `metrics.jsonl`. The conductor writes them; live view, summary and report read nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidemill.wire.cell import Role


class Event(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    time: float  # unix seconds


class JobStarted(Event, frozen=True, tag="job-started"):
    """Also written at every resume."""

    job: str
    mode: str
    steps: int
    cells: tuple[str, ...]
    capacities: tuple[int, ...]
    cores_shared: bool  # cells share CPU cores: times mean nothing
    resumed: bool = False


class TideRead(Event, frozen=True, tag="tide"):
    """Written whenever one of the numbers changes."""

    dispatched: int
    started: int
    terminated: int
    rollout_capacity: int
    ready_groups: int
    step: int
    burst: int  # from 1; 0 outside of bursts, where only evaluations are dispatched


class RoleAcknowledged(Event, frozen=True, tag="role"):
    """A cell is in this role from now. Between a flip's start (see `FlipEnded.seconds`) and this it is in neither."""

    cell: str
    role: Role
    epoch: int


class FlipEnded(Event, frozen=True, tag="flip"):
    cell: str
    to: Role
    epoch: int
    seconds: float
    phases: dict[str, float]
    calls_in_flight: int


class ExecutionEnded(Event, frozen=True, tag="execution"):
    execution: str
    group: int
    task: str
    seconds: float
    turns: int
    sampled_tokens: int
    score: float | None
    dropped: str = ""  # reason, when it is not trained
    evaluation: bool = False  # on a held-out task: scored, never trained


class GroupDropped(Event, frozen=True, tag="group-dropped"):
    """The whole group is not trained: fewer than two of its executions were scored, all alike where such are skipped, or it became too old."""

    group: int
    task: str
    reason: str


class StepCommitted(Event, frozen=True, tag="step"):
    step: int  # 1 after the first
    seconds: float
    groups: int
    executions: int
    trained_tokens: int
    mean_score: float | None
    staleness: int  # publications, largest of the step
    statistics: dict[str, float]
    contributions: dict[str, int]  # micro-steps by cell
    equal_groups: int = 0  # of `groups`: all their scores are equal, nothing of them is trained
    staleness_updates: int = 0  # the same in optimizer updates since the weights it was dispatched under


class VersionPublished(Event, frozen=True, tag="publication"):
    version: int
    step: int
    digest: str


class WeightsLoaded(Event, frozen=True, tag="weights"):
    cell: str
    version: int
    digest: str


class EvaluationEnded(Event, frozen=True, tag="evaluation"):
    """Held-out tasks under one policy version; never trained."""

    version: int
    executions: int  # that were scored
    mean_score: float
    dropped: int = 0  # that were not: they are no zeros, the mean is without them


class ConditionChanged(Event, frozen=True, tag="condition"):
    """Something holds the job back, or (empty text) no longer does."""

    kind: str
    text: str


class JobEnded(Event, frozen=True, tag="job-ended"):
    phase: str
    reason: str = ""


AnyEvent = (
    JobStarted
    | TideRead
    | RoleAcknowledged
    | FlipEnded
    | ExecutionEnded
    | GroupDropped
    | StepCommitted
    | VersionPublished
    | WeightsLoaded
    | EvaluationEnded
    | ConditionChanged
    | JobEnded
)


class BrokenEvents(Exception):
    """A line is no event. The message names it."""


def read_events(path: Path) -> Iterator[AnyEvent]:
    """Events of a `metrics.jsonl`, oldest first. A last line cut short by a crash is left out.

    Raises:
        BrokenEvents: at another line that is no event.
    """
    for event in _read(path):
        if isinstance(event, BrokenEvents):
            raise event
        yield event


def readable_events(path: Path) -> tuple[list[AnyEvent], tuple[str, ...]]:
    """The same without what is no event, and what is to be said of that: of a whole job's record a damaged disk takes a few lines."""
    events: list[AnyEvent] = []
    broken: list[str] = []
    for event in _read(path):
        if isinstance(event, BrokenEvents):
            broken.append(f"{event}; left out")
        else:
            events.append(event)
    more = [f"{path}: {len(broken) - BROKEN_TOLD} more lines are no events; left out"] if len(broken) > BROKEN_TOLD else []
    return events, (*broken[:BROKEN_TOLD], *more)


BROKEN_TOLD = 3


def _read(path: Path) -> Iterator[AnyEvent | BrokenEvents]:
    decoder = msgspec.json.Decoder(AnyEvent)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as cause:
                yield BrokenEvents(f"{path}: line {number} is no event: {cause}")

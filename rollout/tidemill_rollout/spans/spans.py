"""Which spans an event makes. Pure but for two questions; ids follow from names, so that who is told twice is told the same.

Each execution is a trace of its own, with its turns. Each burst is one, with its steps and flips. Links lead from an execution to the burst in
which it ended, from a step to the executions that it trained, and from a turn to the one it continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tidemill.telemetry.events import AnyEvent, ExecutionEnded, FlipEnded, JobEnded, StepCommitted, TideRead
from tidemill.trajectory.records import Turn

MOST_LINKS = 128
"""More are cut off by collectors anyway."""

type Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Name:
    """Of a span: the trace it belongs to, and what it is in there."""

    trace: str
    span: str


@dataclass(frozen=True, slots=True)
class Span:
    service: str  # which process it tells of
    title: str
    name: Name
    parent: Name | None
    start: float  # unix seconds
    end: float
    attributes: dict[str, Value] = field(default_factory=dict)
    links: tuple[Name, ...] = ()
    failed: str = ""  # why


def execution(name: str) -> Name:
    return Name(f"execution/{name}", "execution")


def burst(number: int) -> Name:
    return Name(f"burst/{number}", "burst")


class Recall:
    """What of the events so far the next spans need."""

    def __init__(self, turns_of: Callable[[str], Iterable[Turn]], trained_by: Callable[[int], Iterable[str]]) -> None:
        self._turns_of = turns_of  # of an execution
        self._trained_by = trained_by  # executions, by a step
        self._burst = 0
        self._began = 0.0

    def after(self, event: AnyEvent) -> Iterable[Span]:
        """The spans that end with `event`."""
        now = self._burst
        match event:
            case TideRead() if event.burst != now:
                began, self._burst, self._began = self._began, event.burst, event.time
                return _burst(now, began, event.time)
            case JobEnded():
                began, self._burst = self._began, 0
                return _burst(now, began, event.time)
            case ExecutionEnded():
                return self._execution(event, now)
            case StepCommitted():
                return self._step(event, now)
            case FlipEnded():
                return _flip(event, now)
        return ()

    def _execution(self, event: ExecutionEnded, now: int) -> Iterator[Span]:
        name = execution(event.execution)
        for turn in self._turns_of(event.execution):
            yield _turn(turn, name)
        attributes: dict[str, Value] = {
            "tidemill.execution": event.execution,
            "tidemill.group": event.group,
            "tidemill.task": event.task,
            "tidemill.turns": event.turns,
            "tidemill.sampled_tokens": event.sampled_tokens,
            "tidemill.evaluation": event.evaluation,
        }
        if event.score is not None:
            attributes["tidemill.score"] = event.score
        links = (burst(now),) if now else ()
        yield Span("conductor", "execution", name, None, event.time - event.seconds, event.time, attributes, links, event.dropped)

    def _step(self, event: StepCommitted, now: int) -> Iterator[Span]:
        links = tuple(execution(name) for name in self._trained_by(event.step))[:MOST_LINKS]
        attributes: dict[str, Value] = {
            "tidemill.step": event.step,
            "tidemill.groups": event.groups,
            "tidemill.executions": event.executions,
            "tidemill.trained_tokens": event.trained_tokens,
            "tidemill.staleness": event.staleness,
        }
        start = event.time - event.seconds
        yield Span(
            "conductor", "step", Name(burst(now).trace, f"step/{event.step}"), burst(now) if now else None, start, event.time, attributes, links
        )


def _burst(number: int, began: float, ended: float) -> Iterator[Span]:
    if number:
        yield Span("conductor", "burst", burst(number), None, began, ended, {"tidemill.burst": number})


def _turn(turn: Turn, of: Name) -> Span:
    versions = [version for piece in turn.pieces for version in piece.versions]
    attributes: dict[str, Value] = {
        "tidemill.execution": turn.execution,
        "tidemill.wire": turn.wire,
        "tidemill.agent": turn.agent,
        "tidemill.cells": ",".join(piece.cell for piece in turn.pieces),
        "tidemill.context_tokens": len(turn.context_ids),
        "tidemill.sampled_tokens": turn.sampled,
        "tidemill.finish_reason": turn.finish_reason,
    }
    if versions:
        attributes |= {"tidemill.oldest_version": min(versions), "tidemill.newest_version": max(versions)}
    links = (Name(of.trace, f"turn/{turn.parent}"),) if turn.parent else ()
    return Span("gateway", "turn", Name(of.trace, f"turn/{turn.id}"), of, turn.started, turn.ended, attributes, links)


def _flip(event: FlipEnded, now: int) -> Iterator[Span]:
    """Phases are drawn one after the other from the flip's beginning: how long each took is known, pauses between them are not."""
    trace = burst(now).trace
    name = Name(trace, f"flip/{event.cell}/{event.epoch}")
    start = at = event.time - event.seconds
    attributes: dict[str, Value] = {
        "tidemill.cell": event.cell,
        "tidemill.to": event.to.value,
        "tidemill.epoch": event.epoch,
        "tidemill.calls_in_flight": event.calls_in_flight,
    }
    for phase, seconds in event.phases.items():
        yield Span("cell", phase, Name(trace, f"{name.span}/{phase}"), name, at, at + seconds, {"tidemill.cell": event.cell})
        at += seconds
    yield Span("cell", "flip", name, burst(now) if now else None, start, event.time, attributes)

"""Following one execution through the logs of all processes: which lines are about it, and how they are told, merged by time. Pure."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tidemill.trajectory.records import Turn

_SAID = ("time", "level", "process", "event", "traceback")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a structured log. Times of processes on different machines agree as well as their clocks do."""

    time: str  # 2026-03-01T12:00:00.000Z: sorts as it reads
    fields: dict[str, Any]


def lines(text: Iterable[str]) -> Iterator[Line]:
    """Lines of a log that are structured. What children and libraries print is passed over."""
    for raw in text:
        try:
            fields = json.loads(raw)
        except ValueError:
            continue
        if isinstance(fields, dict) and isinstance(fields.get("time"), str) and isinstance(fields.get("event"), str):
            yield Line(fields["time"], fields)


def about(line: Line, execution: str, turns: frozenset[str] = frozenset()) -> bool:
    """Whether the line names the execution, or a call of one of its turns: cells know calls, not executions."""
    fields = line.fields
    if execution in (fields.get("execution"), *_listed(fields.get("executions"))):
        return True
    return any(str(fields.get(key, "")).split("-")[0] in turns for key in ("turn", "call") if fields.get(key))


def turn_lines(turns: Iterable[Turn], stamp: Callable[[float], str]) -> Iterator[Line]:
    """Finished turns as lines of the gateway. They are not logged: there are thousands, and the trajectory has them."""
    for turn in sorted(turns, key=lambda turn: turn.ended):
        time = stamp(turn.ended)
        fields: dict[str, Any] = {"time": time, "level": "info", "process": "gateway", "event": "turn finished", "execution": turn.execution}
        fields |= {"attempt": turn.attempt, "turn": turn.id, "cells": ",".join(piece.cell for piece in turn.pieces)}
        if turn.agent:
            fields["agent"] = turn.agent
        fields |= {
            "given": len(turn.context_ids),
            "sampled": turn.sampled,
            "seconds": round(turn.ended - turn.started, 3),
            "finish": turn.finish_reason,
        }
        yield Line(time, fields)


def merged(*logs: Iterable[Line]) -> Iterator[Line]:
    """By time. Each log is in its own order already."""
    return heapq.merge(*logs, key=lambda line: line.time)


def told(line: Line, without: Iterable[str] = ()) -> str:
    """One line for people: when, who, what, and the fields that vary."""
    fields = line.fields
    mark = "" if fields.get("level") in ("info", None) else f"{str(fields['level']).upper()} "
    who = " ".join(str(fields[name]) for name in ("process", "cell") if fields.get(name))
    rest = " ".join(f"{name}={_short(value)}" for name, value in fields.items() if name not in {*_SAID, "cell", *without})
    text = f"{line.time[11:23]}  {who:<16} {mark}{fields['event']}{'  ' + rest if rest else ''}"
    return text + ("\n" + str(fields["traceback"]) if fields.get("traceback") else "")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return json.dumps(text) if " " in text else text

"""Traces: how long each execution takes when it is served without waiting, and how many of its tokens are trained. One JSON object a line."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec


class TraceLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    group: int
    seconds: float
    tokens: float
    task: str = ""  # executions of one task resemble each other; empty: nothing is known


class BadTrace(Exception):
    """A trace that cannot be simulated. Says the line, what is wrong with it, and what to do."""


@dataclass(frozen=True, slots=True)
class GroupTrace:
    seconds: tuple[float, ...]  # of each execution
    tokens: tuple[float, ...]
    task: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Groups in the order of dispatch."""

    groups: tuple[GroupTrace, ...]

    @property
    def rollouts_per_group(self) -> int:
        return len(self.groups[0].seconds)

    @property
    def mean_seconds(self) -> float:
        values = [s for g in self.groups for s in g.seconds]
        return sum(values) / len(values)

    @property
    def mean_tokens(self) -> float:
        """Of an execution."""
        values = [t for g in self.groups for t in g.tokens]
        return sum(values) / len(values)

    def group(self, number: int) -> GroupTrace:
        """A job that needs more groups than were recorded meets them again."""
        return self.groups[number % len(self.groups)]


def read_trace(path: Path) -> Trace:
    """Raises `BadTrace`."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as cause:
        raise BadTrace(f"{path}: {cause.strerror}") from cause
    return parse_trace(lines, str(path))


def parse_trace(lines: Iterable[bytes], name: str) -> Trace:
    groups: list[list[TraceLine]] = []
    ends: list[int] = []  # number of each group's last line
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        line = _line(text, f"{name}:{number}")
        if line.group == len(groups):
            _check_size(groups, ends, name)
            groups.append([])
            ends.append(number)
        elif line.group != len(groups) - 1:
            wanted = f"{len(groups) - 1} or {len(groups)}" if groups else "0"
            raise BadTrace(f"{name}:{number}: group is {line.group}, but {wanted} comes here; number groups from 0 in the order of dispatch")
        groups[-1].append(line)
        ends[-1] = number
    if not groups:
        raise BadTrace(f"{name}:1: holds no execution; one JSON object a line is needed, e.g. {{'group': 0, 'seconds': 60.0, 'tokens': 800}}")
    _check_size(groups, ends, name)
    return Trace(tuple(GroupTrace(tuple(e.seconds for e in g), tuple(e.tokens for e in g), g[0].task) for g in groups))


def write_trace(trace: Trace, path: Path) -> None:
    with path.open("wb") as file:
        for number, group in enumerate(trace.groups):
            for seconds, tokens in zip(group.seconds, group.tokens, strict=True):
                file.write(msgspec.json.encode(TraceLine(number, seconds, tokens, group.task)) + b"\n")


def _line(text: bytes, where: str) -> TraceLine:
    try:
        line = msgspec.json.decode(text, type=TraceLine)
    except msgspec.DecodeError as cause:
        hint = " (NaN and Infinity are no JSON numbers)" if b"NaN" in text or b"Infinity" in text else ""
        raise BadTrace(f"{where}: {cause}{hint}; a line is a JSON object with group, seconds and tokens") from cause
    for name, value in (("seconds", line.seconds), ("tokens", line.tokens)):
        if not math.isfinite(value) or value < 0:
            raise BadTrace(f"{where}: {name} is {value:g}; a number that is not negative is needed")
    return line


def _check_size(groups: list[list[TraceLine]], ends: list[int], name: str) -> None:
    if len(groups) > 1 and len(groups[-1]) != len(groups[0]):
        raise BadTrace(
            f"{name}:{ends[-1]}: group {len(groups) - 1} ends here with {len(groups[-1])} executions, but group 0 has {len(groups[0])}; "
            "all groups of a job have the same size"
        )

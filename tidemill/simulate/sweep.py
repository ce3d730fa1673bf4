"""The same comparison over a range of one or more of a job's numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidemill.simulate.setup import Setup

MOST_POINTS = 500


class BadSweep(Exception):
    """A range that cannot be understood. Says what would be."""


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    values: tuple[int, ...]


_LEAST = {"cells": 1, "capacity": 1, "standalone": 0, "groupsPerStep": 1, "stepsPerBurst": 1, "prefetchSteps": 0, "steps": 1, "maxStaleness": 0}
"""What can be swept, and from where."""


def parse_axis(text: str) -> Axis:
    """`cells=2..12`, `cells=2..12..2` or `cells=2,4,8`. Raises `BadSweep`."""
    name, _, values = text.partition("=")
    if name not in _LEAST:
        raise BadSweep(f"--sweep {text}: {name!r} cannot be swept; use one of {', '.join(_LEAST)}")
    try:
        if ".." in values:
            first, last, *step = (int(v) for v in values.split(".."))
            chosen = tuple(range(first, last + 1, *step))
        else:
            chosen = tuple(int(v) for v in values.split(","))
    except ValueError as cause:
        raise BadSweep(f"--sweep {text}: {values!r} is no range; write {name}=2..12, {name}=2..12..2 or {name}=2,4,8") from cause
    if not chosen or min(chosen) < _LEAST[name]:
        wrong = f"{min(chosen)} is less than {_LEAST[name]}" if chosen else "it holds no number"
        raise BadSweep(f"--sweep {text}: {wrong}; write for instance {name}=2..12")
    return Axis(name, chosen)


def points(setup: Setup, axes: tuple[Axis, ...]) -> Iterator[tuple[dict[str, int], Setup]]:
    """Every combination. Raises `BadSweep` when there are too many."""
    number = 1
    for axis in axes:
        number *= len(axis.values)
    if number > MOST_POINTS:
        raise BadSweep(f"--sweep: {number} combinations are more than {MOST_POINTS}; sweep fewer values")
    for values in itertools.product(*(axis.values for axis in axes)):
        chosen = dict(zip((axis.name for axis in axes), values, strict=True))
        here = setup
        for name, value in chosen.items():
            here = _with(here, name, value)
        yield chosen, here


def _with(setup: Setup, name: str, value: int) -> Setup:
    plan = setup.plan
    match name:
        case "groupsPerStep":
            return replace(setup, plan=replace(plan, groups_per_step=value))
        case "stepsPerBurst":
            return replace(setup, plan=replace(plan, steps_per_burst=value))
        case "prefetchSteps":
            return replace(setup, plan=replace(plan, prefetch_steps=value))
        case "steps":
            return replace(setup, plan=replace(plan, steps=value))
        case "cells":
            return replace(setup, cells=value)
        case "capacity":
            return replace(setup, capacity=value)
        case "standalone":
            return replace(setup, standalone=value)
        case _:
            return replace(setup, max_staleness=value)

"""What a simulated job is made of."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.simulate.pool import Execution


@dataclass(slots=True, eq=False)
class Group:
    number: int
    version: int
    version_step: int  # updates in the weights of that version
    executions: tuple[Execution, ...]
    left: int  # executions that have not ended
    scored: int = 0
    started: float = -1.0
    ready: bool = False


@dataclass(slots=True, eq=False)
class Cell:
    name: str
    in_rollout: bool = True  # granted
    settled: bool = False
    epoch: int = 1
    since: float = 0.0  # in its role
    settles: float = 0.0
    training_seconds: float = 0.0


@dataclass(slots=True)
class Burst:
    number: int
    first_step: int
    steps: int
    version: int

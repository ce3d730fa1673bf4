"""What training and flips cost: measured figures, as data."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, ValidationError

from tidemill.api.model import Model


class BadCosts(Exception):
    """A file of costs that cannot be read. Says which field, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Costs:
    train_tokens_per_second: float  # of one cell
    optimizer_step_seconds: float = 0.0  # and the checkpoint: until the step is committed
    publish_seconds: float = 0.0
    flip_to_training_seconds: float = 0.0
    flip_to_rollout_seconds: float = 0.0
    micro_step_tokens: float = 0.0  # trained tokens of one micro-step; 0: an execution's tokens are one
    tool_share: float = 0.0  # part of an execution's time in which it waits for its tools, not for the model
    concurrency: tuple[tuple[float, float], ...] = ()  # (executions / capacity, speed of each), increasing; empty: flat to 1, then in proportion

    def speed(self, load: float) -> float:
        """Of an execution's model calls, when its cell has `load` executions for each place; 1 when it is alone."""
        if not self.concurrency:
            return 1.0 if load <= 1 else 1 / load
        points = self.concurrency
        if load <= points[0][0]:
            return points[0][1]
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            if load <= x1:
                return y0 + (y1 - y0) * (load - x0) / (x1 - x0)
        return points[-1][1] * points[-1][0] / load  # what the cell does in all stays the same

    def progress(self, load: float) -> float:
        """Seconds of an execution's undisturbed time that pass in one second: the model slows down, tools do not."""
        return 1 / (self.tool_share + (1 - self.tool_share) / self.speed(load))


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CostsFile(Model):
    """The file of `--costs`."""

    train_tokens_per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    optimizer_step_seconds: Seconds = 0.0
    publish_seconds: Seconds = 0.0
    flip_to_training_seconds: Seconds = 0.0
    flip_to_rollout_seconds: Seconds = 0.0
    micro_step_tokens: Seconds = 0.0
    tool_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    concurrency: tuple[tuple[Seconds, Annotated[float, Field(gt=0, le=1)]], ...] = ()


def read_costs(path: Path) -> Costs:
    """Raises `BadCosts`."""
    try:
        document = yaml.safe_load(path.read_text())
        costs = CostsFile.model_validate(document)
    except OSError as cause:
        raise BadCosts(f"{path}: {cause.strerror}") from cause
    except yaml.YAMLError as cause:
        raise BadCosts(f"{path}: {cause}") from cause
    except ValidationError as cause:
        lines = [f"{path}: {'.'.join(str(p) for p in e['loc']) or 'the file'}: {e['msg']}" for e in cause.errors()]
        raise BadCosts("\n".join(lines)) from cause
    loads = [load for load, _ in costs.concurrency]
    if loads != sorted(set(loads)):
        raise BadCosts(f"{path}: concurrency: the loads {loads} do not increase; sort the points and give each load once")
    return Costs(**costs.model_dump())

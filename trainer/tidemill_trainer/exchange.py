"""Gradient sums on their way: what a cell has added up but nobody has counted, and what the core has counted of a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tidemill.wire.conductor import MicroStep


@dataclass(slots=True)
class Part:
    """Micro-steps whose gradients lie in a cell's own buffer. Lost with it; then their leases are given to someone else."""

    step: int
    epoch: int  # under which its leases were given
    since: float  # monotonic seconds
    leases: list[str] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)

    def add(self, micro_step: MicroStep, sums: dict[str, float]) -> None:
        self.leases.append(micro_step.lease)
        self.indices.append(micro_step.index)
        self.sums.update(sums)


class StepSum:
    """The sum over one step, at the core. In deterministic mode each gradient is one micro-step's and they are added in index order."""

    def __init__(self, step: int, like: Tensor, deterministic: bool) -> None:
        self.step = step
        self.leases: set[str] = set()
        self.sums: Counter[str] = Counter()
        self._total: Tensor | None = None
        self._like = like
        self._deterministic = deterministic
        self._next_index = 0
        self._early: dict[int, Tensor] = {}  # gradients that wait for one before them

    def reserve(self) -> None:
        """Have the memory before anything is counted: from then on `add` cannot fail."""
        if self._total is None:
            self._total = torch.zeros_like(self._like)

    def add(self, leases: list[str], indices: list[int], sums: dict[str, float], gradient: Tensor) -> None:
        """Count a part. `gradient` is not kept."""
        self.reserve()
        self.leases.update(leases)
        self.sums.update(sums)
        if not self._deterministic:
            self._plus(gradient)
            return
        (index,) = indices
        if index != self._next_index:
            self._early[index] = gradient.to(self._like.device, copy=True)
            return
        self._plus(gradient)
        self._next_index += 1
        while (waiting := self._early.pop(self._next_index, None)) is not None:
            self._plus(waiting)
            self._next_index += 1

    def total(self) -> Tensor | None:
        """The gradient of the step; None when nothing was counted. Indices may have gaps."""
        for index in sorted(self._early):
            self._plus(self._early.pop(index))
        return self._total

    def _plus(self, gradient: Tensor) -> None:
        assert self._total is not None
        self._total.add_(gradient.to(self._total.device))

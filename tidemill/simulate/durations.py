"""Durations drawn from a model: log-normal, correlated inside a group, cut off by time-outs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tidemill.simulate.traces import GroupTrace, Trace


@dataclass(frozen=True, slots=True)
class Durations:
    mean_seconds: float  # before the time-out cuts
    sigma: float
    group_correlation: float
    time_out_seconds: float = math.inf
    tokens_per_execution: float = 1.0  # on average; an execution's tokens are proportional to its time

    def draw(self, groups: int, rollouts_per_group: int, seed: int) -> Trace:
        random = np.random.default_rng(seed)
        shared = random.standard_normal((groups, 1)) * math.sqrt(self.group_correlation)
        own = random.standard_normal((groups, rollouts_per_group)) * math.sqrt(1 - self.group_correlation)
        location = math.log(self.mean_seconds) - self.sigma**2 / 2
        seconds = np.minimum(np.exp(location + self.sigma * (shared + own)), self.time_out_seconds)
        tokens = seconds * (self.tokens_per_execution / seconds.mean())
        return Trace(tuple(GroupTrace(tuple(s), tuple(t)) for s, t in zip(seconds.tolist(), tokens.tolist(), strict=True)))

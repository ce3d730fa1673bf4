"""AdamW on the flat float32 master weights. Its state exists on the core only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.0  # a policy is kept near its start by clipping and small steps; decay would pull it towards zero instead


class Optimizer:
    """torch's fused AdamW: one pass over memory, no temporaries. Constant learning rate."""

    def __init__(self, weights: Tensor, learning_rate: float, max_grad_norm: float) -> None:
        self._learning_rate = learning_rate
        self._max_grad_norm = max_grad_norm
        self._parameter = torch.nn.Parameter(weights)  # shares the memory
        self._adamw = torch.optim.AdamW([self._parameter], lr=learning_rate, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY, fused=True)
        self.first_moment = torch.zeros_like(weights)
        self.second_moment = torch.zeros_like(weights)
        self._updates = torch.zeros((), device=weights.device)
        self._adamw.state[self._parameter] = {"step": self._updates, "exp_avg": self.first_moment, "exp_avg_sq": self.second_moment}

    @property
    def updates(self) -> int:
        return int(self._updates.item())

    @updates.setter
    def updates(self, count: int) -> None:
        self._updates.fill_(count)

    def update(self, gradient: Tensor) -> dict[str, float]:
        """One update by `gradient`, which is scaled down in place to the largest allowed norm.

        Not a number, or infinite: the weights stay as they are. At learning rate 0 they stay bit for bit (x - 0 turns -0.0 into 0.0).
        """
        norm = torch.linalg.vector_norm(gradient).item()
        finite = math.isfinite(norm)
        if finite and self._learning_rate > 0:
            gradient.mul_(min(1.0, self._max_grad_norm / (norm + 1e-6)))
            self._parameter.grad = gradient
            self._adamw.step()
            self._parameter.grad = None
        return {"gradientNorm": norm if finite else -1.0, "updateSkipped": float(not finite), "learningRate": self._learning_rate}

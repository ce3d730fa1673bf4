"""AdamW on a flat buffer."""

import math

import pytest
import torch

from tidemill_trainer.optimizer import BETAS, EPSILON, Optimizer


def test_updates_follow_the_formula_with_the_gradient_scaled_to_the_largest_norm() -> None:
    weights = torch.tensor([1.0, -2.0, 3.0])
    optimizer = Optimizer(weights, 0.1, 1.0)
    expected, m, v = [1.0, -2.0, 3.0], [0.0] * 3, [0.0] * 3
    for update, gradient in enumerate(([3.0, 4.0, 0.0], [0.1, 0.0, -0.2]), start=1):
        norm = math.sqrt(sum(g * g for g in gradient))
        figures = optimizer.update(torch.tensor(gradient))
        assert figures["gradientNorm"] == pytest.approx(norm)
        for i, g in enumerate(gradient):
            g *= min(1.0, 1.0 / (norm + 1e-6))
            m[i] = BETAS[0] * m[i] + (1 - BETAS[0]) * g
            v[i] = BETAS[1] * v[i] + (1 - BETAS[1]) * g * g
            expected[i] -= 0.1 * (m[i] / (1 - BETAS[0] ** update)) / (math.sqrt(v[i] / (1 - BETAS[1] ** update)) + EPSILON)
    assert weights.tolist() == pytest.approx(expected, rel=1e-5)
    assert optimizer.updates == 2


def test_at_learning_rate_zero_every_bit_stays() -> None:
    weights = torch.tensor([-0.0, 0.0, 1e-42, -3.0])
    before = weights.view(torch.int32).clone()
    Optimizer(weights, 0.0, 1.0).update(torch.tensor([-1.0, 2.0, 3.0, 4.0]))
    assert torch.equal(weights.view(torch.int32), before)


def test_a_gradient_that_is_not_a_number_leaves_weights_and_moments_alone() -> None:
    weights = torch.ones(3)
    optimizer = Optimizer(weights, 0.1, 1.0)
    figures = optimizer.update(torch.tensor([1.0, float("nan"), 0.0]))
    assert figures["updateSkipped"] == 1.0
    assert torch.equal(weights, torch.ones(3))
    assert not optimizer.first_moment.any()


def test_a_restored_optimizer_goes_on_as_if_it_had_never_stopped() -> None:
    weights = torch.linspace(-1, 1, 50)
    optimizer = Optimizer(weights, 0.01, 1.0)
    optimizer.update(torch.linspace(0, 2, 50))
    restored_weights = weights.clone()
    restored = Optimizer(restored_weights, 0.01, 1.0)
    restored.first_moment.copy_(optimizer.first_moment)
    restored.second_moment.copy_(optimizer.second_moment)
    restored.updates = optimizer.updates
    for each in (optimizer, restored):
        each.update(torch.linspace(3, 1, 50))
    assert torch.equal(weights, restored_weights)

"""The objectives against a slow implementation that follows the formulas token by token."""

import math
from random import Random

import pytest
import torch
from torch import Tensor

from tidemill.api.rljob import Algorithm
from tidemill_trainer.loss import Objective, Tokens, loss, summary

CAP = 5.0
CLIP = (0.995, 1.005)


def batch(seed: int, spread: float) -> tuple[Tensor, Tensor, Tokens]:
    random = Random(seed)
    lengths = [random.randrange(1, 9) for _ in range(6)]
    sequence = [i for i, n in enumerate(lengths) for _ in range(n)]
    per_sequence = [random.uniform(-1, 1) for _ in lengths]
    new = torch.tensor([random.uniform(-5, -0.1) for _ in sequence], dtype=torch.float64, requires_grad=True)
    old = new.detach() + torch.tensor([random.gauss(0, spread) for _ in sequence], dtype=torch.float64)
    behaviour = old + torch.tensor([random.gauss(0, 2) for _ in sequence], dtype=torch.float64)
    order = list(range(len(sequence)))
    random.shuffle(order)  # tokens of a sequence need not lie together
    weights = torch.tensor([per_sequence[i] for i in sequence], dtype=torch.float64)
    tokens = Tokens(weights[order], behaviour[order], torch.tensor(sequence)[order], len(lengths))
    return new.detach()[order].requires_grad_(), old[order], tokens


def slow(new: list[float], old: list[float], tokens: Tokens, name: Algorithm) -> tuple[float, list[float]]:
    """Loss and its gradient with respect to each new log-probability, written out."""
    value, gradient = 0.0, [0.0] * len(new)
    members = [[t for t in range(len(new)) if int(tokens.sequence[t]) == i] for i in range(tokens.sequences)]
    for t in range(len(new)):
        w = float(tokens.weights[t]) * min(math.exp(old[t] - float(tokens.behaviour[t])), CAP)
        mine = members[int(tokens.sequence[t])]
        r = math.exp(new[t] - old[t])
        low, high = 0.8, 1.28 if name is Algorithm.DAPO else 1.2
        if name is Algorithm.GSPO:
            r = math.exp(sum(new[u] - old[u] for u in mine) / len(mine))
            low, high = CLIP
        if name is Algorithm.CISPO:
            value -= w * min(r, 1.28) * new[t]
            gradient[t] -= w * min(r, 1.28)
            continue
        value -= min(w * r, w * min(max(r, low), high))
        if (w > 0 and r < high) or (w < 0 and r > low):
            gradient[t] -= w * r
    return value, gradient


@pytest.mark.parametrize("name", list(Algorithm))
@pytest.mark.parametrize("spread", [0.0, 0.003, 0.5])
def test_value_and_gradient_follow_the_published_formula(name: Algorithm, spread: float) -> None:
    for seed in range(20):
        new, old, tokens = batch(seed, spread)
        found = loss(new, old, tokens, Objective(name, CAP, CLIP))
        found.value.backward()
        value, gradient = slow(new.tolist(), old.tolist(), tokens, name)
        assert found.value.item() == pytest.approx(value, rel=1e-9, abs=1e-12)
        assert new.grad is not None
        assert new.grad.tolist() == pytest.approx(gradient, rel=1e-9, abs=1e-12)


def test_the_token_form_of_gspo_has_the_gradient_of_the_sequence_form_when_all_token_weights_are_equal() -> None:
    new, old, tokens = batch(3, 0.001)
    tokens = Tokens(tokens.weights, old, tokens.sequence, tokens.sequences)  # behaviour = old: importance weight 1
    loss(new, old, tokens, Objective(Algorithm.GSPO, CAP, CLIP)).value.backward()
    other = new.detach().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(tokens.sequences):
        mine = tokens.sequence == i
        ratio = (other[mine] - old[mine]).mean().exp()
        weight = tokens.weights[mine][0]
        total = total - mine.sum() * torch.minimum(ratio * weight, ratio.clamp(*CLIP) * weight)
    total.backward()
    assert new.grad is not None
    assert other.grad is not None
    assert torch.allclose(new.grad, other.grad, rtol=1e-9)


def test_without_any_change_of_weights_nothing_is_clipped_and_every_objective_is_the_policy_gradient() -> None:
    new, _, tokens = batch(1, 0.0)
    found = loss(new, new.detach(), tokens, Objective(Algorithm.GSPO, CAP, CLIP))
    found.value.backward()
    assert found.sums["clipped"] == 0
    importance = (new.detach() - tokens.behaviour).exp().clamp(max=CAP)
    assert new.grad is not None
    assert torch.allclose(new.grad, -tokens.weights * importance)


def test_the_figures_of_a_step_are_shares_and_means_over_its_tokens() -> None:
    new, old, tokens = batch(2, 0.5)
    sums = loss(new, old, tokens, Objective(Algorithm.GRPO, CAP, CLIP)).sums
    figures = summary({name: 2 * value for name, value in sums.items()})
    importance = (old - tokens.behaviour).exp()
    assert figures["cappedShare"] == pytest.approx((importance > CAP).double().mean().item())
    assert figures["meanLogprobDifference"] == pytest.approx((old - tokens.behaviour).abs().mean().item())
    assert 0 < figures["clipShare"] < 1
    assert figures["tokens"] == 2 * len(new)

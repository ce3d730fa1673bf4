"""The core's sum over a step."""

import torch

from tidemill_trainer.exchange import StepSum


def gradients() -> list[torch.Tensor]:
    """Numbers whose sum depends on the order of adding."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(100, generator=generator) * 10.0 ** (3 * i) for i in range(5)]


def sum_of(order: list[int], deterministic: bool) -> torch.Tensor:
    made = gradients()
    total = StepSum(0, torch.zeros(100), deterministic)
    for index in order:
        total.add([f"L{index}"], [index], {"tokens": 1.0}, made[index])
        made[index].zero_()  # the buffer it came from is used again
    result = total.total()
    assert result is not None
    assert total.sums["tokens"] == len(order)
    return result


def test_a_deterministic_sum_does_not_depend_on_who_was_faster() -> None:
    in_order = sum_of([0, 1, 2, 3, 4], deterministic=True)
    assert torch.equal(sum_of([3, 1, 0, 4, 2], deterministic=True), in_order)
    assert torch.equal(sum_of([4, 3, 2, 1, 0], deterministic=True), in_order)
    assert not torch.equal(sum_of([4, 3, 2, 1, 0], deterministic=False), in_order)


def test_indices_may_have_gaps() -> None:
    total = sum_of([4, 0, 2], deterministic=True)
    made = gradients()
    assert torch.equal(total, (torch.zeros(100) + made[0]) + made[2] + made[4])


def test_a_step_of_nothing_has_no_gradient() -> None:
    assert StepSum(0, torch.zeros(3), deterministic=False).total() is None

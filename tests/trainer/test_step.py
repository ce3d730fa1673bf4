"""A packed micro-step has the loss and the gradient of its sequences one by one, as the plain Hugging Face model computes them."""

from collections import Counter
from collections.abc import Sequence as Many
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.trainer.inputs import VOCABULARY, group, tiny_model
from tidemill.api.rljob import Algorithm
from tidemill.trajectory.sequence import Sequence
from tidemill_trainer import logprobs, step
from tidemill_trainer.loss import Objective
from tidemill_trainer.model import Model
from tidemill_trainer.step import forward_backward

GSPO = Objective(Algorithm.GSPO, 5.0, (0.995, 1.005))


def one_by_one(folder: Path, sequences: Many[Sequence], temperature: float) -> tuple[dict[str, Tensor], float]:
    """Gradients by name and the loss, without any of this trainer's code: GSPO at unchanged weights is the weighted policy gradient."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total = 0.0
    for s in sequences:
        logits = model(torch.tensor(s.token_ids)[None]).logits[0, :-1] / temperature
        new = logits.log_softmax(-1).gather(1, torch.tensor(s.token_ids[1:])[:, None])[:, 0]
        new = new[torch.tensor(s.trained[1:])]
        importance = (new.detach() - torch.tensor(s.behaviour_logprobs)).exp().clamp(max=5.0)
        weight = torch.tensor(s.weights) * importance
        (-(weight * new)).sum().backward()
        total -= weight.sum().item()  # at unchanged weights every ratio is 1
    return {name: parameter.grad for name, parameter in model.named_parameters()}, total


def gradients(model: Model) -> dict[str, Tensor]:
    held = model.hold_gradients()
    return {slot.name: slot.of(held).clone() for slot in model.layout.slots}


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("tokens_per_pass", [40, 10_000])
def test_the_gradient_of_a_packed_micro_step_is_that_of_its_sequences_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, temperature: float, tokens_per_pass: int
) -> None:
    monkeypatch.setattr(step, "TOKENS_PER_PASS", tokens_per_pass)
    monkeypatch.setattr(logprobs, "LOGITS_PER_CHUNK", 7 * VOCABULARY)  # several chunks
    folder = tiny_model(tmp_path / "model", family)
    sequences = group()
    expected, value = one_by_one(folder, sequences, temperature)
    model = Model.load(folder, torch.device("cpu"))
    sums = forward_backward(model, sequences, GSPO, temperature)
    assert sums["loss"] == pytest.approx(value, abs=1e-5)
    assert sums["tokens"] == sum(sum(s.trained) for s in sequences)
    found = gradients(model)
    assert found.keys() == expected.keys()
    largest = max(g.abs().max().item() for g in expected.values())
    assert largest > 0.01
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-5, atol=1e-5 * largest), name


def test_the_shared_prompt_is_computed_once(tmp_path: Path) -> None:
    model = Model.load(tiny_model(tmp_path / "model"), torch.device("cpu"))
    sequences = group(count=4, prompt=30)
    sums = forward_backward(model, sequences, GSPO, 1.0)
    assert sums["computed_tokens"] <= sum(len(s.token_ids) for s in sequences) - 3 * 30


def test_micro_steps_add_up(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    model = Model.load(folder, torch.device("cpu"))
    sequences = group()
    sums: Counter[str] = Counter()
    for part in (sequences[:2], sequences[2:]):
        sums.update(forward_backward(model, part, GSPO, 1.0))
    in_two = gradients(model)
    model.clear_gradients()
    forward_backward(model, sequences, GSPO, 1.0)
    for name, gradient in gradients(model).items():
        assert torch.allclose(in_two[name], gradient, rtol=1e-5, atol=1e-6), name
    assert sums["micro_steps"] == 2


def test_a_micro_step_without_trained_tokens_changes_nothing(tmp_path: Path) -> None:
    model = Model.load(tiny_model(tmp_path / "model"), torch.device("cpu"))
    sums = forward_backward(model, [Sequence("e", (1, 2, 3), (False,) * 3, (), (), ())], GSPO, 1.0)
    assert not model.hold_gradients().any()
    assert sums["micro_steps"] == 1

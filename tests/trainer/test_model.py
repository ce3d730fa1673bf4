"""The flat buffers: canonical names, tied weights once, and nothing held when nothing is needed."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from tests.trainer.inputs import tiny_model
from tidemill_trainer.checkpoint import write_safetensors
from tidemill_trainer.model import Model, UnsupportedModel, check_supported

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_buffer_holds_the_canonical_tensors_of_the_folder(tmp_path: Path, family: str) -> None:
    folder = tiny_model(tmp_path / "model", family)
    model = Model.load(folder, CPU)
    expected = dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    weights = model.hold_weights()
    assert {slot.name for slot in model.layout.slots} == expected.keys()
    assert ("lm_head.weight" in expected) == (family == "qwen3")
    for slot in model.layout.slots:
        assert torch.equal(slot.of(weights), expected[slot.name])
        assert slot.of(weights).data_ptr() % 64 == weights.data_ptr() % 64


def test_an_empty_model_computes_the_same_once_it_has_the_weights(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    full, empty = Model.load(folder, CPU), Model.empty(folder, CPU)
    assert empty.weights is None
    assert empty.layout == full.layout
    empty.hold_weights().copy_(full.hold_weights())
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        full.module.set_attn_implementation("sdpa")
        empty.module.set_attn_implementation("sdpa")
        assert torch.equal(full.module(ids).logits, empty.module(ids).logits)


def test_weights_and_gradients_can_be_dropped_and_held_again(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "model")
    model = Model.load(folder, CPU)
    model.step = 4
    kept = model.hold_weights().clone()
    model.hold_gradients().fill_(1)
    model.drop_weights()
    assert model.weights is None
    assert model.gradients is None
    assert model.step == -1
    model.hold_weights().copy_(kept)
    assert not model.hold_gradients().any()


def test_a_file_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    model = Model.load(tiny_model(tmp_path / "model"), CPU)
    target = torch.empty(model.layout.numel)
    write_safetensors(tmp_path / "other.safetensors", [("model.embed_tokens.weight", torch.zeros(97, 64)), ("spare", torch.zeros(2))])
    with pytest.raises(UnsupportedModel, match="spare"):
        model.read(tmp_path / "other.safetensors", target)
    write_safetensors(tmp_path / "short.safetensors", [("model.embed_tokens.weight", torch.zeros(97, 64))])
    with pytest.raises(UnsupportedModel, match="missing"):
        model.read(tmp_path / "short.safetensors", target)


def test_what_this_trainer_would_compute_wrongly_is_refused() -> None:
    check_supported(LlamaConfig())
    with pytest.raises(UnsupportedModel, match="sliding_attention"):
        check_supported(Qwen2Config(use_sliding_window=True, sliding_window=4, max_window_layers=0))
    config = LlamaConfig()
    config.logit_scale = 0.1
    with pytest.raises(UnsupportedModel, match="logit_scale"):
        check_supported(config)

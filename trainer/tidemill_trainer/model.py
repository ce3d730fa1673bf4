"""The Hugging Face model, its parameters and gradients in one flat float32 buffer each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from tidemill_trainer import attention
from tidemill_trainer.checkpoint import read_safetensors
from tidemill_trainer.layout import Layout


class UnsupportedModel(Exception):
    """The model cannot be trained here; the text says why."""


class Model:
    """Buffers are made when they are needed and given back when not: a satellite that serves rollouts holds neither."""

    def __init__(self, module: Any, device: torch.device) -> None:
        check_supported(module.config)
        self.module = module.eval()  # dropout stays off: the policy that is trained is the one that sampled
        self.device = device
        self._parameters: list[tuple[str, torch.nn.Parameter]] = list(module.named_parameters())  # tied ones once
        self.layout = Layout.of((name, parameter.shape) for name, parameter in self._parameters)
        self.weights: Tensor | None = None  # [layout.numel]
        self.gradients: Tensor | None = None
        self.step = -1  # optimizer updates in the weights; -1: none are held

    @staticmethod
    def load(folder: Path, device: torch.device) -> Model:
        """The model with the weights of a Hugging Face folder, converted to float32."""
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention.NAME, local_files_only=True)
        model = Model(module, device)
        held = [parameter.data for _, parameter in model._parameters]
        model.hold_weights()
        for (_, parameter), initial in zip(model._parameters, held, strict=True):
            parameter.data.copy_(initial)
        return model

    @staticmethod
    def empty(folder: Path, device: torch.device) -> Model:
        """The model without weights."""
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with no_init_weights():
            module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention.NAME)
        module.tie_weights()  # a part of what was skipped
        model = Model(module, device)
        model.drop_weights()
        return model

    def hold_weights(self) -> Tensor:
        """The weight buffer, made if there is none; then its content is undefined and `step` is -1."""
        if self.weights is None:
            self.weights = torch.empty(self.layout.numel, device=self.device)
            for slot, (_, parameter) in zip(self.layout.slots, self._parameters, strict=True):
                parameter.data = slot.of(self.weights)
            self.module.to(self.device)  # what is not a parameter: the tables of rotary embeddings
            self.step = -1
        return self.weights

    def hold_gradients(self) -> Tensor:
        """The gradient buffer, made and zero if there is none. `backward` adds to it."""
        if self.gradients is None:
            self.gradients = torch.zeros(self.layout.numel, device=self.device)
            for slot, (_, parameter) in zip(self.layout.slots, self._parameters, strict=True):
                parameter.grad = slot.of(self.gradients)
        return self.gradients

    def clear_gradients(self) -> None:
        self.hold_gradients().zero_()

    def drop_weights(self) -> None:
        self.drop_gradients()
        for _, parameter in self._parameters:
            parameter.data = torch.empty(0, device=self.device)
        self.weights = None
        self.step = -1

    def drop_gradients(self) -> None:
        for _, parameter in self._parameters:
            parameter.grad = None
        self.gradients = None

    def read(self, file: Path, into: Tensor) -> None:
        """Read a safetensors file that holds exactly this model's canonical tensors."""
        missing = {slot.name: slot for slot in self.layout.slots}
        for name, stored in read_safetensors(file):
            slot = missing.pop(name, None)
            if slot is None:
                raise UnsupportedModel(f"{file}: this model has no tensor {name}; it was written by another model")
            slot.of(into).copy_(stored)
        if missing:
            raise UnsupportedModel(f"{file}: tensor {next(iter(missing))} and {len(missing) - 1} more are missing; it was written by another model")


def check_supported(config: Any) -> None:
    """Raises UnsupportedModel for what this trainer would silently compute otherwise than the engine does."""
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise UnsupportedModel(
            f"{config.model_type}: layers of kind {', '.join(sorted(kinds))} cannot be packed as a tree; use a model with full attention"
        )
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(config, name, None):
            raise UnsupportedModel(f"{config.model_type}: {name} is not applied by this trainer; use a model without it")


def choose_device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

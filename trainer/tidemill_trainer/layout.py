"""How a model lies in one flat buffer: canonical tensors (Hugging Face names, tied ones once) behind each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes. Every tensor starts where vector instructions like it."""


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    shape: tuple[int, ...]
    offset: int  # elements from the start of the buffer

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def of(self, buffer: Tensor) -> Tensor:
        """This tensor inside `buffer`, without a copy."""
        return buffer[self.offset : self.offset + self.numel].view(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    slots: tuple[Slot, ...]
    numel: int  # of the buffer, gaps included

    @staticmethod
    def of(tensors: Iterable[tuple[str, torch.Size]]) -> Layout:
        step = ALIGNMENT // torch.float32.itemsize
        slots = []
        offset = 0
        for name, shape in tensors:
            slots.append(Slot(name, tuple(shape), offset))
            offset += -(-shape.numel() // step) * step
        return Layout(tuple(slots), offset)

"""Weights as other processes pull them: shards in exported host memory, with checksums."""

from __future__ import annotations

import torch
from torch import Tensor

from tidemill.transfer import Region, Transport, checksum
from tidemill.transfer.checksum import Summed
from tidemill.wire.trainer import MemoryDescriptor, Shard, WeightSnapshot
from tidemill_trainer.layout import Layout

BETWEEN_PUBLICATIONS = -1
"""`WeightSnapshot.version` of weights that no engine may serve."""


class Snapshot:
    """One exported buffer and what is in it. While it is written `present` is None; whoever was reading sees wrong checksums and reads again."""

    def __init__(self, layout: Layout, dtype: torch.dtype, transport: Transport) -> None:
        self.present: WeightSnapshot | None = None
        self._layout = layout
        self._dtype = dtype
        self._transport = transport
        self._memory: Tensor | None = None
        self._source: MemoryDescriptor | None = None

    def take(self, weights: Tensor, step: int, version: int) -> WeightSnapshot:
        """Copy `weights` into the buffer."""
        self.present = None
        if self._memory is None:
            self._memory = torch.empty(self._layout.numel, dtype=self._dtype)
        self._memory.copy_(weights)
        return self._announce(self._memory, step, version)

    def alias(self, weights: Tensor, step: int, version: int) -> WeightSnapshot:
        """Export `weights` themselves: no second copy. The caller calls `retire` before it changes them."""
        if self._memory is not weights:
            self.close()
            self._memory = weights
        return self._announce(weights, step, version)

    def retire(self) -> None:
        self.present = None

    def close(self) -> None:
        self.present = None
        if self._source is not None:
            self._transport.withdraw(self._source)
        self._memory = self._source = None

    def _announce(self, memory: Tensor, step: int, version: int) -> WeightSnapshot:
        if self._source is None:
            self._source = self._transport.export(region(memory))
        shards = shards_of(memory, self._layout)
        self.present = WeightSnapshot(step, version, checksum.digest_of_shards(shards), shards, self._source)
        return self.present


def region(memory: Tensor) -> Region:
    return Region(memory.data_ptr(), memory.numel() * memory.element_size())


def shards_of(memory: Tensor, layout: Layout) -> tuple[Shard, ...]:
    """`memory` is in host memory."""
    size = memory.element_size()
    name = dtype_name(memory.dtype)
    at = memory.data_ptr()
    return tuple(
        Shard(s.name, name, s.shape, s.offset * size, s.numel * size, checksum.of_memory(at + s.offset * size, s.numel * size)) for s in layout.slots
    )


def digest_of(weights: Tensor, layout: Layout, dtype: torch.dtype) -> str:
    """The digest that `weights` will have when they are published as `dtype`."""
    summed = []
    for slot in layout.slots:
        tensor = slot.of(weights).to("cpu", dtype)
        summed.append(Summed(slot.name, dtype_name(dtype), slot.shape, checksum.of_memory(tensor.data_ptr(), tensor.numel() * tensor.element_size())))
    return checksum.digest(summed)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""What vLLM's workers do for us: pull weights, verify them, load them, and say what is loaded.

vLLM mixes `PolicyWeights` into its worker class (`--worker-extension-cls`); the server calls the methods by `collective_rpc`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec
import torch
from torch import nn

from tidemill.transfer import Region, TransferFailed, transport
from tidemill.transfer.checksum import digest_of_shards, mismatches
from tidemill.wire.trainer import WeightSnapshot
from tidemill_rollout.engine.loaded import NotReadable, canonical_tensors, dtype_name, loaded_digest

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class ModelRunner(Protocol):
    """What is needed of vLLM's, which differs by platform."""

    def get_model(self) -> nn.Module: ...


class Outcome(msgspec.Struct, frozen=True):
    """Of one pull. `digest` is that of the parameters afterwards; empty when they are neither the old nor the new ones."""

    digest: str
    problem: str = ""
    seconds: dict[str, float] = {}


class PolicyWeights:
    """Methods of a vLLM worker. All is checked before the first parameter is touched: a refused snapshot leaves the old weights in place."""

    vllm_config: VllmConfig
    model_runner: ModelRunner

    def pull_weights(self, snapshot_json: bytes, deadline_seconds: float) -> bytes:
        snapshot = msgspec.json.decode(snapshot_json, type=WeightSnapshot)
        return msgspec.json.encode(_pull(self.model_runner.get_model(), self.vllm_config, snapshot, deadline_seconds))

    def digest_of_loaded_weights(self) -> str:
        return loaded_digest(self.model_runner.get_model())


def _pull(model: nn.Module, config: VllmConfig, snapshot: WeightSnapshot, deadline_seconds: float) -> Outcome:
    clock = _Clock()
    try:
        refuse_other_model(model, snapshot)
        buffer = torch.empty(snapshot.source.nbytes, dtype=torch.uint8)
        region = Region(buffer.data_ptr(), buffer.nbytes)
        way = transport()
        try:
            way.pull(snapshot.source, region, deadline_seconds)
        finally:
            way.close()
        clock.lap("pull")
        if wrong := mismatches(snapshot.shards, region):
            raise TransferFailed(f"{len(wrong)} of {len(snapshot.shards)} tensors do not have the announced checksum, the first is {wrong[0]}")
        clock.lap("verify")
    except (TransferFailed, NotReadable) as problem:
        return Outcome(loaded_digest(model), f"weights of version {snapshot.version}: {problem}", clock.seconds)
    _load(model, config, _tensors(snapshot, buffer))
    clock.lap("load")
    digest = loaded_digest(model)
    clock.lap("digest")
    if digest != snapshot.digest:
        return Outcome(
            "", f"weights of version {snapshot.version}: loaded parameters have digest {digest}, published is {snapshot.digest}", clock.seconds
        )
    return Outcome(digest, seconds=clock.seconds)


def refuse_other_model(model: nn.Module, snapshot: WeightSnapshot) -> None:
    """Raise `TransferFailed` when names, shapes or dtypes are not those of the loaded model, or the snapshot contradicts itself."""
    if digest_of_shards(snapshot.shards) != snapshot.digest:
        raise TransferFailed("the digest is not that of the announced tensors")
    here = {name: (tuple(tensor.shape), dtype_name(tensor.dtype)) for name, tensor in canonical_tensors(model)}
    there = {shard.name: (tuple(shard.shape), shard.dtype) for shard in snapshot.shards}
    if here != there:
        name = min(n for n in here.keys() | there.keys() if here.get(n) != there.get(n))
        raise TransferFailed(f"not the weights of this model: {name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here")


def _load(model: nn.Module, config: VllmConfig, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    """vLLM's way to load a checkpoint into a model that serves: parameters keep their addresses, and are processed as at the first load."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    # It warns of modules without parameters (rotary embeddings) at every load. What is loaded is checked here, by digest.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
    with torch.no_grad(), set_current_vllm_config(config):
        initialize_layerwise_reload(model)
        model.load_weights(tensors)  # type: ignore[operator]  # a method that every vLLM model has, which nn.Module does not know
        finalize_layerwise_reload(model, config.model_config)


def _tensors(snapshot: WeightSnapshot, buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Views into the pulled memory."""
    for shard in snapshot.shards:
        yield shard.name, buffer[shard.offset : shard.offset + shard.nbytes].view(getattr(torch, shard.dtype)).view(shard.shape)


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name], self._last = now - self._last, now

"""Checksums of what an engine has loaded, under the names of the Hugging Face checkpoint.

vLLM fuses matrices (q, k, v into qkv; gate and up into gate_up) and pads the vocabulary. Here that is undone, by views into the very
parameters that the forward pass reads: on GPUs vLLM's linear layers use `layer.weight` directly; on CPUs they do because
`plugin.keep_cpu_weights_readable` turned pre-packing off. A parameter for which this does not hold (empty, fused in a way not known here) is
an error, never left out; a quantised one has another name or dtype than the published tensor, which is an error of the update.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from tidemill.transfer.checksum import Summed, digest, of_memory


class NotReadable(Exception):
    """A parameter cannot be brought into the checkpoint's form, so nothing can be said about it."""


def canonical_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter once (a tied output matrix is the embedding), fused ones as views of their parts.

    Raises:
        NotReadable: names the parameter.
    """
    fused: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        owner, _, last = path.rpartition(".")
        module = model.get_submodule(path)
        if parameter.numel() == 0:
            raise NotReadable(f"{name} is empty: vLLM has packed it away")
        if last in fused:
            sizes: list[int] = module.output_partition_sizes  # type: ignore[assignment]  # nn.Module's attributes are typed as tensors
            if len(sizes) != len(fused[last]) or sum(sizes) != parameter.shape[0]:
                raise NotReadable(f"{name} of shape {tuple(parameter.shape)} does not consist of {', '.join(fused[last])} of {sizes} rows")
            for part, rows in zip(fused[last], torch.split(parameter, sizes), strict=True):
                yield f"{owner}.{part}.{leaf}", rows
        elif hasattr(module, "org_vocab_size"):
            yield name, parameter[: module.org_vocab_size]
        else:
            yield name, parameter


def checksums(model: nn.Module) -> list[Summed]:
    return [_summed(name, tensor) for name, tensor in canonical_tensors(model)]


def loaded_digest(model: nn.Module) -> str:
    """Equal to the digest of the snapshot (or the checkpoint) with the same weights."""
    return digest(checksums(model))


def _summed(name: str, tensor: torch.Tensor) -> Summed:
    host = tensor.detach().contiguous().cpu()
    return Summed(name, dtype_name(host.dtype), tuple(host.shape), of_memory(host.data_ptr(), host.nbytes))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

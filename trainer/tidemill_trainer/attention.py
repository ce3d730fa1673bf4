"""Attention over a packed tree, as a back end of the Hugging Face model: no padding, no mask over pairs that never meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from tidemill.trajectory.packing import Packed

NAME = "tidemill_tree"
"""The `attn_implementation` of a model that `forward` is called on with `tree=`."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The segments of one pass as index pieces and masks, made once for all layers."""

    pieces: tuple[tuple[slice, tuple[slice, ...], Tensor | None], ...]  # queries, keys, mask (None: causal in itself)

    @staticmethod
    def of(packed: Packed, device: torch.device) -> Tree:
        spans = [slice(s.start, s.start + s.length) for s in packed.segments]
        pieces = []
        for span, segment in zip(spans, packed.segments, strict=True):
            before = sum(packed.segments[a].length for a in segment.ancestors)
            mask = None
            if before:
                mask = torch.ones(segment.length, before + segment.length, dtype=torch.bool, device=device).tril(before)
            pieces.append((span, (*(spans[a] for a in segment.ancestors), span), mask))
        return Tree(tuple(pieces))


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, heads, tokens, head]
    key: Tensor,  # [1, key heads, tokens, head]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    tree: Tree,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer; `tree` comes through the model's keyword arguments."""
    grouped = query.shape[1] != key.shape[1]
    results = []
    for queries, keys, mask in tree.pieces:
        k = key[:, :, keys[0]] if len(keys) == 1 else torch.cat([key[:, :, span] for span in keys], dim=2)
        v = value[:, :, keys[0]] if len(keys) == 1 else torch.cat([value[:, :, span] for span in keys], dim=2)
        results.append(
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, queries], k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
            )
        )
    return torch.cat(results, dim=2).transpose(1, 2), None  # [1, tokens, heads, head]


AttentionInterface.register(NAME, tree_attention)

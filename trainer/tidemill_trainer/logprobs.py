"""Log-probabilities of given tokens from hidden states, without ever holding the logits of all rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LOGITS_PER_CHUNK = 8 * 2**20
"""32 MB of float32. A chunk lives twice at the most."""


class _TokenLogprobs(torch.autograd.Function):
    """Forward keeps one number a row (the normaliser); backward computes each chunk of logits again, 5% of a small model's step."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [rows, hidden]
        matrix: Tensor,  # [vocabulary, hidden]
        rows: Tensor,  # [tokens] ascending
        targets: Tensor,  # [tokens]
        temperature: float,
    ) -> Tensor:  # [tokens]
        normalisers = torch.empty(len(hidden), device=hidden.device)
        logprobs = torch.empty(len(rows), device=hidden.device)
        for begin, end, first, last in _chunks(len(hidden), len(matrix), rows):
            logits = (hidden[begin:end] @ matrix.T).div_(temperature)
            normalisers[begin:end] = logits.logsumexp(1)
            logprobs[first:last] = logits[rows[first:last] - begin, targets[first:last]] - normalisers[rows[first:last]]
        ctx.save_for_backward(hidden, matrix, rows, targets, normalisers)
        ctx.temperature = temperature
        return logprobs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (given,) = gradients
        hidden, matrix, rows, targets, normalisers = ctx.saved_tensors
        to_hidden = torch.empty_like(hidden)
        to_matrix = torch.zeros_like(matrix)
        by_row = torch.zeros(len(hidden), device=hidden.device).index_add_(0, rows, given)
        for begin, end, first, last in _chunks(len(hidden), len(matrix), rows):
            change = (hidden[begin:end] @ matrix.T).div_(ctx.temperature)
            change.sub_(normalisers[begin:end, None]).exp_().mul_(-by_row[begin:end, None])
            change.index_put_((rows[first:last] - begin, targets[first:last]), given[first:last], accumulate=True)
            change.div_(ctx.temperature)
            torch.mm(change, matrix, out=to_hidden[begin:end])
            to_matrix.addmm_(change.T, hidden[begin:end])
        return to_hidden, to_matrix, None, None, None


def token_logprobs(hidden: Tensor, matrix: Tensor, rows: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """log softmax(hidden[rows] @ matrix.T / temperature)[targets]. `rows` ascends; several tokens may follow one row."""
    result: Tensor = _TokenLogprobs.apply(hidden, matrix, rows, targets, temperature)  # type: ignore[no-untyped-call] # torch leaves it untyped
    return result


def _chunks(rows: int, vocabulary: int, of_tokens: Tensor) -> list[tuple[int, int, int, int]]:
    """(first row, end, first token, end) of each chunk."""
    height = max(1, LOGITS_PER_CHUNK // vocabulary)
    begins = [*range(0, rows, height), rows]
    edges = torch.searchsorted(of_tokens, torch.tensor(begins, device=of_tokens.device)).tolist()
    return [(begins[i], begins[i + 1], edges[i], edges[i + 1]) for i in range(len(begins) - 1)]

"""What is maximised: GSPO, GRPO, DAPO and CISPO over the trained tokens of sequences.

Notation, for token t of sequence i: w_it is `Sequence.weights` (advantage, averaging inside the execution and the step's normaliser
B * N; the sum over a step's tokens needs no further division), b_it the engine's log-probability, o_it the old one, n_it the new one.

    loss of a step = - sum over i, t of  w_it * c_it * f_it        c_it = min(exp(o_it - b_it), cap), a constant: the token's importance weight

    GSPO   w f = min(w s_it, w clip(s_it, low, high));  s_it = stop(s_i) * exp(n_it - stop(n_it)),  s_i = exp(mean over t of (n_it - o_it))
           arXiv 2507.18071, the token form: the same value, clip and gradient as the sequence form when all w_it c_it of a sequence are equal
    GRPO   the same with the token's own ratio r_it = exp(n_it - o_it), low = high = 0.2; arXiv 2402.03300, Eq. 3, without its KL term
    DAPO   GRPO with low = 0.2, high = 0.28 (clip-higher); arXiv 2503.14476, Eq. 8
    CISPO  f = stop(min(r_it, 1 + 0.28)) * n_it: every token keeps its gradient; arXiv 2506.13585, Eq. 4-5

DAPO's and CISPO's own normalisers (tokens of the group) are not used: a step divides by B * N executions, whatever the objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tidemill.api.rljob import Algorithm

LOW = 0.2
HIGH = 0.2
CLIP_HIGHER = 0.28


@dataclass(frozen=True, slots=True)
class Objective:
    name: Algorithm
    token_weight_cap: float
    sequence_clip: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The trained tokens of several sequences behind each other."""

    weights: Tensor  # [tokens]
    behaviour: Tensor  # [tokens] log-probabilities of the engine
    sequence: Tensor  # [tokens] int64, which sequence each belongs to
    sequences: int


@dataclass(frozen=True, slots=True)
class Loss:
    value: Tensor  # scalar; its gradient with respect to the new log-probabilities is what counts
    sums: dict[str, float] = field(default_factory=dict)  # see `summary`


def loss(new: Tensor, old: Tensor, tokens: Tokens, objective: Objective) -> Loss:
    """`new` [tokens] carries the gradient, `old` does not."""
    importance = torch.exp(old - tokens.behaviour)
    scale = tokens.weights * importance.clamp(max=objective.token_weight_cap)
    match objective.name:
        case Algorithm.GSPO:
            sequence_ratio = torch.exp(_mean_by_sequence(new.detach() - old, tokens))[tokens.sequence]
            value, clipped = _clipped(sequence_ratio * torch.exp(new - new.detach()), scale, *objective.sequence_clip)
        case Algorithm.GRPO:
            value, clipped = _clipped(torch.exp(new - old), scale, 1 - LOW, 1 + HIGH)
        case Algorithm.DAPO:
            value, clipped = _clipped(torch.exp(new - old), scale, 1 - LOW, 1 + CLIP_HIGHER)
        case Algorithm.CISPO:
            ratio = torch.exp(new.detach() - old)
            value, clipped = ratio.clamp(max=1 + CLIP_HIGHER) * scale * new, ratio > 1 + CLIP_HIGHER
    total = -value.sum()
    sums = {
        "tokens": float(len(new)),
        "sequences": float(tokens.sequences),
        "loss": total.item(),
        "clipped": clipped.sum().item(),
        "capped": (importance > objective.token_weight_cap).sum().item(),
        "logprob": new.detach().sum().item(),
        "logprob_difference": (old - tokens.behaviour).abs().sum().item(),
    }
    return Loss(total, sums)


def summary(sums: Mapping[str, float]) -> dict[str, float]:
    """Sums over a step as the figures people look at."""
    tokens = max(sums.get("tokens", 0.0), 1.0)
    return {
        "tokens": sums.get("tokens", 0.0),
        "sequences": sums.get("sequences", 0.0),
        "microSteps": sums.get("micro_steps", 0.0),
        "loss": sums.get("loss", 0.0),
        "clipShare": sums.get("clipped", 0.0) / tokens,
        "cappedShare": sums.get("capped", 0.0) / tokens,
        "meanLogprob": sums.get("logprob", 0.0) / tokens,
        "meanLogprobDifference": sums.get("logprob_difference", 0.0) / tokens,  # |trainer - engine|
        "computedTokens": sums.get("computed_tokens", 0.0),
        "sequenceTokens": sums.get("sequence_tokens", 0.0),  # of all sequences, what they share counted in each
        "computeSeconds": sums.get("compute_seconds", 0.0),  # of all cells together
    }


def _clipped(ratio: Tensor, scale: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The pessimistic one of both, and which tokens have lost their gradient."""
    free, held = ratio * scale, ratio.clamp(low, high) * scale
    return torch.minimum(free, held), (held < free).detach()


def _mean_by_sequence(values: Tensor, tokens: Tokens) -> Tensor:
    sums = torch.zeros(tokens.sequences, dtype=values.dtype, device=values.device).index_add_(0, tokens.sequence, values)
    counts = torch.bincount(tokens.sequence, minlength=tokens.sequences).clamp(min=1)
    return sums / counts

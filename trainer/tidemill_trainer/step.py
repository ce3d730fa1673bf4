"""Forward and backward of one micro-step: gradients are added to the model's buffer, sums come back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tidemill.trajectory.packing import Packed, pack
from tidemill.trajectory.sequence import Sequence
from tidemill_trainer.attention import Tree
from tidemill_trainer.logprobs import token_logprobs
from tidemill_trainer.loss import Objective, Tokens, loss
from tidemill_trainer.model import Model
from tidemill_trainer.packing import passes

TOKENS_PER_PASS = 512
"""Computed tokens of one forward-backward pass; activations of a 135M model take about 1.3 MB each."""


def forward_backward(model: Model, sequences: SequenceOf[Sequence], objective: Objective, temperature: float) -> dict[str, float]:
    """Add the gradient of the loss over `sequences` to `model.gradients`; return the sums that `loss.summary` reads."""
    started = time.perf_counter()
    model.hold_gradients()
    sums: Counter[str] = Counter()
    for chosen in passes([s.token_ids for s in sequences], TOKENS_PER_PASS):
        sums.update(_one_pass(model, [sequences[i] for i in chosen], objective, temperature))
    sums.update({"micro_steps": 1.0, "compute_seconds": time.perf_counter() - started})
    return dict(sums)


def _one_pass(model: Model, sequences: SequenceOf[Sequence], objective: Objective, temperature: float) -> dict[str, float]:
    packed = pack([s.token_ids for s in sequences])
    device = model.device
    predicting, targets, sequence, weights, behaviour = (torch.as_tensor(column, device=device) for column in _trained(packed, sequences))
    if not len(targets):
        return {}
    rows, places = torch.unique_consecutive(predicting, return_inverse=True)
    tokens = Tokens(weights, behaviour, sequence, len(sequences))
    hidden = model.module.base_model(
        input_ids=torch.tensor(packed.token_ids, device=device)[None],
        position_ids=torch.tensor(packed.positions, device=device)[None],
        use_cache=False,
        tree=Tree.of(packed, device),
    ).last_hidden_state[0]  # [computed tokens, hidden]
    new = token_logprobs(hidden[rows], model.module.get_output_embeddings().weight, places, targets, temperature)
    # A group trains within one step, and weights change only between steps: the weights of its first micro-step are the present ones.
    old = new.detach()
    result = loss(new, old, tokens, objective)
    result.value.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    return {**result.sums, "computed_tokens": float(len(packed.token_ids)), "sequence_tokens": float(sum(len(s.token_ids) for s in sequences))}


def _trained(packed: Packed, sequences: SequenceOf[Sequence]) -> list[NDArray[Any]]:
    """Of the trained tokens: the row that predicts each, the token, its sequence, weight and log-probability; sorted by row.

    A token is predicted by the row of the token before it in its own sequence. The first of a sequence is not predicted.
    """
    found: list[tuple[NDArray[Any], ...]] = []
    for number, s in enumerate(sequences):
        at = np.flatnonzero(s.trained)
        first = int(len(at) > 0 and at[0] == 0)
        at = at[first:]
        rows, tokens = np.asarray(packed.places[number], np.int64)[at - 1], np.asarray(s.token_ids, np.int64)[at]
        weights, behaviour = (np.asarray(column, np.float32)[first:] for column in (s.weights, s.behaviour_logprobs))
        found.append((rows, tokens, np.full(len(at), number), weights, behaviour))
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return [column[order] for column in columns]

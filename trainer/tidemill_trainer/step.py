"""Forward and backward of one micro-step: gradients are added to the model's buffer, sums come back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence as SequenceOf

import torch

from tidemill.trajectory.sequence import Sequence
from tidemill_trainer.attention import Tree
from tidemill_trainer.logprobs import token_logprobs
from tidemill_trainer.loss import Objective, Tokens, loss
from tidemill_trainer.model import Model
from tidemill_trainer.packing import pack, passes

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
    # A token is predicted by the row of the token before it in its own sequence. Sorted by row, as `token_logprobs` wants it.
    trained = sorted((packed.places[i][t - 1], i, t) for i, s in enumerate(sequences) for t in range(1, len(s.token_ids)) if s.trained[t])
    if not trained:
        return {}
    rows, places = torch.unique_consecutive(torch.tensor([row for row, _, _ in trained], device=device), return_inverse=True)
    tokens = Tokens(
        weights=torch.tensor([sequences[i].weights[t] for _, i, t in trained], device=device),
        behaviour=torch.tensor([sequences[i].behaviour_logprobs[t] for _, i, t in trained], device=device),
        sequence=torch.tensor([i for _, i, _ in trained], device=device),
        sequences=len(sequences),
    )
    hidden = model.module.base_model(
        input_ids=torch.tensor([packed.token_ids], device=device),
        position_ids=torch.tensor([packed.positions], device=device),
        use_cache=False,
        tree=Tree.of(packed, device),
    ).last_hidden_state[0]  # [computed tokens, hidden]
    targets = torch.tensor([sequences[i].token_ids[t] for _, i, t in trained], device=device)
    new = token_logprobs(hidden[rows], model.module.get_output_embeddings().weight, places, targets, temperature)
    # A group trains within one step, and weights change only between steps: the weights of its first micro-step are the present ones.
    old = new.detach()
    result = loss(new, old, tokens, objective)
    result.value.backward()  # type: ignore[no-untyped-call] # torch leaves it untyped
    return {**result.sums, "computed_tokens": float(len(packed.token_ids))}

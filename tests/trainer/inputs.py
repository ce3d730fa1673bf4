"""A tiny random model (2 layers, hidden 64) and made-up sequences."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tidemill.trajectory.sequence import Sequence

VOCABULARY = 97


def tiny_model(folder: Path, family: str = "llama") -> Path:
    """llama: output matrix tied to the embedding. qwen3: head norms, an output matrix of its own, and tensors whose sizes leave gaps."""
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 20 if family == "qwen3" else 16,
        "initializer_range": 0.1,
        "max_position_embeddings": 512,
    }
    torch.manual_seed(0)
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=False))
    model.save_pretrained(folder)
    return folder


def group(seed: int = 0, count: int = 6, prompt: int = 30) -> tuple[Sequence, ...]:
    """Sequences of one group: the same prompt, then turns of sampled and given tokens; some share their first answer too."""
    random = Random(seed)
    opening = [random.randrange(VOCABULARY) for _ in range(prompt)]
    answer = [random.randrange(VOCABULARY) for _ in range(20)]
    sequences = []
    for number in range(count):
        ids = list(opening)
        trained = [False] * prompt
        if number % 3 == 0:
            ids += answer
            trained += [number == 0] * len(answer)  # a shared prefix is trained once
        for turn in range(random.randrange(1, 4)):
            length = random.randrange(1, 15)
            ids += [random.randrange(VOCABULARY) for _ in range(length)]
            trained += [turn % 2 == 0] * length
        weight = random.choice([-1, 1]) * random.uniform(0.5, 1.5) / 40
        sequences.append(
            Sequence(
                f"execution-{number}",
                tuple(ids),
                tuple(trained),
                tuple(-4.6 + random.gauss(0, 1) for t in trained if t),
                (0,) * sum(trained),
                (weight,) * sum(trained),
            )
        )
    return tuple(sequences)

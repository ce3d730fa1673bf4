"""Whole answers from the generate route, and what a Hugging Face model says about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tidemill.wire.engine import EngineClient, Generate, Sampled, Sampling

PROMPT = tuple(b"Once upon a midnight dreary, while I pondered, weak and weary")


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str = ""

    def add(self, sampled: Sampled) -> None:
        self.ids += sampled.token_ids
        self.logprobs += sampled.logprobs
        self.versions += sampled.versions
        self.finish_reason = sampled.finish_reason


# Most tests sample greedily: the tiny model would otherwise end an answer of 300 tokens by chance.
async def answer(client: EngineClient, prompt: tuple[int, ...] = PROMPT, **sampling: object) -> Answer:
    whole = Answer()
    async for sampled in client.generate(Generate("call", prompt, Sampling(**sampling)), idle_seconds=60):
        whole.add(sampled)
    return whole


class Reference:
    """The same weights in transformers."""

    def __init__(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._model.load_state_dict(tensors, strict=False)

    @torch.no_grad()
    def logits(self, ids: list[int], after: Reference | None = None, known: int = 0) -> torch.Tensor:
        """[tokens - known, vocabulary]. The keys and values of the first `known` tokens are those that `after` computes."""
        if after is None or known == 0:
            return self._model(torch.tensor([ids])).logits[0]
        past = after._model(torch.tensor([ids[:known]]), use_cache=True).past_key_values
        return self._model(torch.tensor([ids[known:]]), past_key_values=past).logits[0]


def logprobs_of(logits: torch.Tensor, ids: list[int], temperature: float = 1.0, top_p: float = 1.0) -> list[float]:
    """Of `ids` under the rows of `logits`, in the distribution that is sampled from."""
    logits = logits / temperature
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(-1)
    left_out = probabilities.cumsum(-1) - probabilities >= top_p
    kept = logits.masked_fill(torch.zeros_like(left_out).scatter(-1, order, left_out), float("-inf"))
    return kept.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)].tolist()

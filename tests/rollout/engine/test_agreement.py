"""Tokens in the tree are the engine's, for every wire, and the trainer would have given them the same probability."""

from pathlib import Path

import pytest
import torch

from tests.engines import MAX_LENGTH, Publisher, RunningEngine
from tests.rollout.engine.agreement import harness, recomputed
from tidemill_trainer.model import Model

BASH = {"type": "object", "properties": {"command": {"type": "string"}}}
FIELDS = {
    "chat": {"tools": [{"type": "function", "function": {"name": "bash", "description": "Run", "parameters": BASH}}]},
    "messages": {
        "tools": [{"name": "bash", "description": "Run", "input_schema": BASH}],
        "system": [{"type": "text", "text": "Be brief."}],
        "thinking": {"type": "adaptive"},
    },
    "responses": {
        "tools": [{"type": "function", "name": "bash", "description": "Run", "parameters": BASH}],
        "instructions": "Be brief.",
        "include": ["reasoning.encrypted_content"],
    },
}


@pytest.fixture(scope="module")
def trainer(engine: RunningEngine, publisher: Publisher) -> Model:
    return Model.load(engine.model, torch.device("cpu"))


@pytest.mark.parametrize("wire", list(FIELDS))
async def test_tokens_in_the_tree_are_the_engines_and_the_trainer_agrees(
    tmp_path: Path, engine: RunningEngine, version: int, publisher: Publisher, trainer: Model, wire: str
) -> None:
    trainer.module.load_state_dict(publisher.tensors, strict=False)
    async with harness(tmp_path, engine, wire, max_length=MAX_LENGTH, max_tokens=24, **FIELDS[wire]) as h:
        one = await h.ask([], "What is here?")
        two = await h.ask(one, "Look again.", stream=True)
        await h.ask(two, "And?")
        await h.ask(one, "Something else.", stream=True)  # a branch
        turns = await h.turns()
    first, second, third, branch = turns
    assert (first.parent, second.parent, third.parent, branch.parent) == ("", first.id, second.id, first.id)
    assert {turn.wire for turn in turns} == {wire}
    assert {version for turn in turns for version in turn.versions} == {version}
    agreed = recomputed(trainer, turns)
    for turn in turns:
        assert list(turn.logprobs) == pytest.approx(agreed[turn.id], abs=1e-3)

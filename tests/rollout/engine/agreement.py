"""A gateway in front of a real engine, harnesses of every wire, and what the trainer's own model code says about the tokens they caused."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import torch

from tests.engines import RunningEngine
from tests.rollout.gateway.world import ScriptedConductor, paths, serving
from tidemill.api.rljob import Tools
from tidemill.trajectory.packing import pack
from tidemill.trajectory.records import Turn
from tidemill.wire.engine import Sampling
from tidemill.wire.gateway import GatewayClient, OpenExecution, Route
from tidemill_rollout.gateway.process import Settings, running
from tidemill_rollout.gateway.render import Renderer
from tidemill_trainer.attention import Tree
from tidemill_trainer.logprobs import token_logprobs
from tidemill_trainer.model import Model

PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
ELEMENTS = {"chat": "messages", "messages": "messages", "responses": "input"}


@dataclass
class Harness:
    """One execution of a harness that speaks one wire and sends back what it was given, element by element."""

    wire: str
    session: aiohttp.ClientSession
    url: str
    conductor: ScriptedConductor
    client: GatewayClient
    fields: dict[str, Any]

    async def ask(self, history: list[Any], text: str, stream: bool = False) -> list[Any]:
        """The history with question and answer."""
        asked = [*history, {"role": "user", "content": text}]
        body = {"model": "policy", "stream": stream, ELEMENTS[self.wire]: asked, **self.fields}
        url = f"{self.url}/x/{self.wire}/v1/{PATHS[self.wire]}"
        async with self.session.post(url, json=body, headers={"Authorization": "Bearer key"}) as response:
            raw = await response.read()
            assert response.status == 200, raw
        return [*asked, *(self._streamed(raw) if stream else self._whole(json.loads(raw)))]

    async def turns(self) -> list[Turn]:
        await self.client.close(self.wire, 1)
        return list(self.conductor.turns.values())

    def _whole(self, answer: Any) -> list[Any]:
        match self.wire:
            case "chat":
                return [answer["choices"][0]["message"]]
            case "messages":
                return [{"role": "assistant", "content": answer["content"]}]
        return list(answer["output"])

    def _streamed(self, raw: bytes) -> list[Any]:
        events = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
        match self.wire:
            case "chat":
                deltas = [choice["delta"] for event in events for choice in event["choices"]]
                calls = [{**call} for delta in deltas for call in delta.get("tool_calls", [])]
                thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
                text = "".join(delta.get("content") or "" for delta in deltas)
                return [{"role": "assistant", "content": text, "reasoning_content": thought, **({"tool_calls": calls} if calls else {})}]
            case "messages":
                blocks: list[Any] = []
                for event in events:
                    if event["type"] == "content_block_start":
                        blocks.append({**event["content_block"], "json": ""})
                    elif event["type"] == "content_block_delta":
                        for field, name in (("text", "text"), ("thinking", "thinking"), ("signature", "signature"), ("partial_json", "json")):
                            blocks[-1][name] = blocks[-1].get(name, "") + event["delta"].get(field, "")
                for block in blocks:
                    written = block.pop("json")
                    if block["type"] == "tool_use":
                        block["input"] = json.loads(written)
                return [{"role": "assistant", "content": blocks}]
        return [event["item"] for event in events if event["type"] == "response.output_item.done"]


@contextlib.asynccontextmanager
async def harness(folder: Path, engine: RunningEngine, wire: str, *, max_length: int, max_tokens: int, **fields: Any) -> AsyncIterator[Harness]:
    conductor = ScriptedConductor()
    async with serving(conductor.application()) as conductor_url, aiohttp.ClientSession() as session:
        journal = folder / f"gateway-{wire}.db"
        settings = Settings(journal, "127.0.0.1", 0, None, conductor_url, engine.token, max_length=max_length, call_seconds=60.0)
        async with running(settings, Renderer(engine.model, Tools.TEXT)) as gateway:
            client = GatewayClient(gateway.url, engine.token, session)
            await client.open(OpenExecution(wire, 1, "key", "generic", Sampling(max_tokens=max_tokens), deadline=time.time() + 600))
            await client.put_route(Route(engine.cell, 1, 0, engine.url, capacity=8, ordinal=0))
            yield Harness(wire, session, gateway.url, conductor, client, fields)


@torch.no_grad()
def recomputed(model: Model, turns: list[Turn]) -> dict[str, list[float]]:
    """Log-probabilities of each turn's sampled tokens, by the trainer's model on the packed tree of all turns."""
    whole = paths(turns)
    packed = pack([tuple(whole[turn.id]) for turn in turns])
    hidden = model.module.base_model(
        input_ids=torch.tensor(packed.token_ids)[None],
        position_ids=torch.tensor(packed.positions)[None],
        use_cache=False,
        tree=Tree.of(packed, model.device),
    ).last_hidden_state[0]
    found = {}
    for number, turn in enumerate(turns):
        sampled = list(turn.sampled_ids)
        before = list(packed.places[number])[-len(sampled) - 1 : -1]
        rows, order = torch.tensor(before).sort()
        logprobs = token_logprobs(hidden, model.module.get_output_embeddings().weight, rows, torch.tensor(sampled)[order], 1.0)
        found[turn.id] = logprobs[order.argsort()].tolist()
    return found

"""A job as far as trainers need one: a manifest, a tiny model, a conductor in this process, real trainer processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import torch
from torch import Tensor

from tests.ports import free_port
from tests.trainer.conductor import Conductor, entries
from tests.trainer.inputs import group, tiny_model
from tidemill.api.rljob import Algorithm
from tidemill.local.parent import die_with_parent
from tidemill.trajectory.sequence import Sequence
from tidemill.wire.http import Refused, Unreachable
from tidemill.wire.trainer import Join, TrainerClient
from tidemill_trainer import checkpoint
from tidemill_trainer.checkpoint import read_safetensors
from tidemill_trainer.exchange import StepSum
from tidemill_trainer.loss import Objective
from tidemill_trainer.model import Model
from tidemill_trainer.optimizer import Optimizer
from tidemill_trainer.step import forward_backward

TOKEN = "secret"
MANIFEST = """
apiVersion: tidemill.dev/v1alpha1
kind: RLJob
metadata: {{name: test}}
spec:
  model: {{source: "path:{model}", dtype: float32, maxLength: 512}}
  cells: {{count: 3, gpusPerNode: 0, capacity: 8}}
  schedule: {{mode: Elastic, groupsPerStep: 2, rolloutsPerGroup: 4, stepsPerBurst: 2, steps: 2}}
  algorithm: {{name: GSPO, learningRate: {learning_rate}, deterministic: {deterministic}}}
  sampling: {{temperature: 1.0, maxTokens: 64}}
  harness: {{preset: react}}
  tasks: {{source: "path:tasks"}}
  timeouts: {{executionSeconds: 300}}
"""
LEARNING_RATE = 1e-2

STEPS = [[group(seed=10 * step + index, count=3) for index in range(6)] for step in range(2)]
"""Two steps of six micro-steps."""


@dataclass
class Trainer:
    process: subprocess.Popen[bytes]
    client: TrainerClient
    log: Path

    @property
    def url(self) -> str:
        return self.client.base_url

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    async def join(self, epoch: int, core: Trainer | None = None, seconds: float = 120.0) -> None:
        """As soon as it can."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        await self.client.join(Join(epoch, core.url if core else ""))
                        return
                    except (Unreachable, Refused):
                        assert self.process.poll() is None, self.log.read_text()
                        await asyncio.sleep(0.05)
        except TimeoutError as cause:
            raise AssertionError(f"no join within {seconds:g} s:\n{self.log.read_text()}") from cause


@dataclass
class World:
    folder: Path
    model: Path
    conductor: Conductor
    session: aiohttp.ClientSession
    trainers: list[Trainer] = field(default_factory=list)

    def start(self, cell: str) -> Trainer:
        port = free_port()
        log = self.folder / f"{cell}-{len(self.trainers)}.log"
        command = [sys.executable, "-m", "tidemill_trainer", "--manifest", str(self.folder / "job.yaml"), "--workdir", str(self.folder)]
        command += ["--cell", cell, "--port", str(port), "--conductor-url", self.conductor.url, "--model", str(self.model)]
        environment = {**os.environ, "TIDEMILL_TOKEN": TOKEN}
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=environment, stderr=out, stdout=out, preexec_fn=die_with_parent)
        trainer = Trainer(process, TrainerClient(f"http://127.0.0.1:{port}", TOKEN, self.session), log)
        self.trainers.append(trainer)
        return trainer

    async def trained(self) -> None:
        """Every step is committed and the last weights are published."""
        last = len(self.conductor.steps)
        await self.conductor.until(lambda c: c.committed == last and c.published is not None and c.published.step == last, "the job ends", 90.0)

    def weights(self, step: int) -> dict[str, Tensor]:
        return dict(read_safetensors(self.folder / "checkpoints" / checkpoint.name_of(step) / checkpoint.WEIGHTS))

    def logs(self) -> str:
        return "\n".join(f"--- {t.log.name}\n{t.log.read_text()}" for t in self.trainers)


@asynccontextmanager
async def world(
    folder: Path, wanted_by: Callable[[int], str] = lambda index: "", learning_rate: float = LEARNING_RATE, deterministic: bool = True
) -> AsyncIterator[World]:
    model = tiny_model(folder / "initial")
    manifest = MANIFEST.format(model=model, learning_rate=learning_rate, deterministic=str(deterministic).lower())
    (folder / "job.yaml").write_text(manifest)
    conductor = Conductor([entries(parts, wanted_by) for parts in STEPS], steps_per_burst=2)
    runner = await conductor.start(TOKEN)
    async with aiohttp.ClientSession() as session:
        made = World(folder, model, conductor, session)
        try:
            yield made
        except AssertionError as failure:
            raise AssertionError(f"{failure}\n{made.logs()}") from failure
        finally:
            for trainer in made.trainers:
                trainer.kill()
            await runner.cleanup()


def done_by_one(model_folder: Path, steps: list[list[tuple[Sequence, ...]]] = STEPS) -> dict[str, Tensor]:
    """The weights after all steps, computed here, one micro-step after the other in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = Model.load(model_folder, torch.device("cpu"))
        weights = model.hold_weights()
        optimizer = Optimizer(weights, LEARNING_RATE, 1.0)
        for number, parts in enumerate(steps):
            total = StepSum(number, weights, deterministic=True)
            for index, part in enumerate(parts):
                model.clear_gradients()
                sums = forward_backward(model, part, Objective(Algorithm.GSPO, 5.0, (0.995, 1.005)), 1.0)
                total.add([str(index)], [index], sums, model.hold_gradients())
            gradient = total.total()
            assert gradient is not None
            optimizer.update(gradient)
        return {slot.name: slot.of(weights).clone() for slot in model.layout.slots}
    finally:
        torch.set_num_threads(threads)


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name].view(torch.int32), expected[name].view(torch.int32))]
    assert not different, f"{len(different)} of {len(expected)} tensors differ, first {different[0]}"

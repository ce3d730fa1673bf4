"""Real trainer processes: whoever computes and whoever dies, the weights are those of one cell doing it all."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.conductor import unreachable
from tests.trainer.inputs import tiny_model
from tests.trainer.world import STEPS, assert_same_bits, done_by_one, world
from tidemill.transfer import Region, checksum, transport
from tidemill.wire.http import Refused, Rejected, WireError
from tidemill.wire.trainer import Join, Leave, WeightSnapshot

THREE = ("cell-0", "cell-1", "cell-2")


def by_turns(index: int) -> str:
    return THREE[index % 3]


def pull(snapshot: WeightSnapshot) -> tuple[str, bytes]:
    """Read it as an engine does; the digest is computed from what arrived."""
    memory = np.zeros(snapshot.source.nbytes, np.uint8)
    way = transport()
    way.pull(snapshot.source, Region(memory.ctypes.data, memory.nbytes), 20)
    way.close()
    assert checksum.mismatches(snapshot.shards, Region(memory.ctypes.data, memory.nbytes)) == ()
    return checksum.digest_of_shards(snapshot.shards), memory.tobytes()


async def test_one_cell_alone_trains_publishes_and_leaves_a_checkpoint_of_the_published_weights(tmp_path: Path) -> None:
    async with world(tmp_path) as job:
        core = job.start("cell-0")
        await core.join(1)
        await job.trained()
        assert_same_bits(job.weights(2), done_by_one(job.model))
        assert [(p.version, p.step) for p in job.conductor.publications] == [(0, 0), (1, 2)]
        digests = [p.digest for p in job.conductor.publications]
        assert len(set(digests)) == 2
        assert job.conductor.applied[-1].digest == digests[-1]
        digest, _ = await asyncio.to_thread(pull, await core.client.weights_of_version(1))
        assert digest == digests[-1]
        with pytest.raises(Refused, match="version 0"):
            await core.client.weights_of_version(0)
        figures = job.conductor.applied[0].statistics
        assert figures["microSteps"] == 6
        assert figures["gradientNorm"] > 0
        assert figures["tokens"] == sum(sum(s.trained) for part in STEPS[0] for s in part)
        core.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(core.process.wait, 5) == 0


@pytest.mark.parametrize("deterministic", [True, False])
async def test_three_cells_together_have_the_weights_of_one(tmp_path: Path, deterministic: bool) -> None:
    async with world(tmp_path, by_turns, deterministic=deterministic) as job:
        core, *satellites = (job.start(cell) for cell in THREE)
        await core.join(1)
        for satellite in satellites:
            await satellite.join(1, core)
        await job.trained()
        assert {cell for _, cell, _ in job.conductor.contributions} == set(THREE)
        assert sum(len(leases) for _, _, leases in job.conductor.contributions) == 12
        expected = done_by_one(job.model)
        if deterministic:
            assert_same_bits(job.weights(2), expected)
        else:
            for name, tensor in job.weights(2).items():
                assert torch.allclose(tensor, expected[name], rtol=0, atol=1e-5), name


async def test_a_satellite_that_dies_in_mid_step_is_made_good_by_the_others(tmp_path: Path) -> None:
    async with world(tmp_path, by_turns) as job:
        core, one, two = (job.start(cell) for cell in THREE)
        await core.join(1)
        await one.join(1, core)
        await job.conductor.until(lambda c: bool(c.leased_to("cell-1")), "cell-1 has a lease")
        one.kill()
        await job.conductor.give_up_on("cell-1")
        await two.join(1, core)
        await job.conductor.let_anyone()
        await job.trained()
        assert_same_bits(job.weights(2), done_by_one(job.model))


async def test_a_core_that_dies_between_checkpoint_and_commit_does_the_step_again_and_serves_what_it_had_published(tmp_path: Path) -> None:
    async with world(tmp_path) as job:
        core = job.start("cell-0")
        satellite = job.start("cell-1")
        reported: list[int] = []

        def not_the_second(step: int) -> None:
            reported.append(step)
            if step == 1:
                unreachable("not now")

        job.conductor.before_commit = not_the_second
        await core.join(1)
        await satellite.join(1, core)
        await job.conductor.until(lambda c: 1 in reported, "the core reports the second step")
        assert (tmp_path / "checkpoints" / "step-000002").exists()
        core.kill()
        job.conductor.before_commit = lambda step: None
        again = job.start("cell-0")
        again_joined = asyncio.create_task(again.join(2))
        published = None
        async with asyncio.timeout(60):
            while published is None:
                try:
                    published = await again.client.weights_of_version(0)
                except WireError:
                    await asyncio.sleep(0.05)
        await again_joined
        assert published.step == 0
        assert published.digest == job.conductor.publications[0].digest
        await satellite.join(2, again)
        await job.trained()
        assert_same_bits(job.weights(2), done_by_one(job.model))
        assert {f.name for f in (tmp_path / "checkpoints").iterdir()} == {"step-000001", "step-000002"}


async def test_a_core_that_dies_before_the_checkpoint_starts_from_the_last_one(tmp_path: Path) -> None:
    async with world(tmp_path) as job:
        core = job.start("cell-0")

        def die_at_the_second(step: int) -> None:
            if step == 1 and core.process.poll() is None:
                core.process.kill()

        job.conductor.before_apply = die_at_the_second
        await core.join(1)
        await asyncio.to_thread(core.process.wait, 60)
        partial = tmp_path / "checkpoints" / ".step-000002.partial"
        partial.mkdir(exist_ok=True)
        again = job.start("cell-0")
        await again.join(2)
        await job.trained()
        assert_same_bits(job.weights(2), done_by_one(job.model))
        assert not partial.exists()


async def test_at_learning_rate_zero_the_weights_stay_bit_for_bit(tmp_path: Path) -> None:
    async with world(tmp_path, learning_rate=0.0) as job:
        core = job.start("cell-0")
        await core.join(1)
        await job.trained()
        assert len({p.digest for p in job.conductor.publications}) == 1
        assert job.conductor.applied[-1].statistics["gradientNorm"] > 0


async def test_a_satellite_leaves_after_handing_over_and_comes_back_under_a_newer_epoch(tmp_path: Path) -> None:
    async with world(tmp_path, by_turns, deterministic=False) as job:
        core, satellite = job.start("cell-0"), job.start("cell-1")
        await core.join(1)
        with pytest.raises(Rejected, match="core_url"):
            await satellite.join(1)
        await satellite.join(3, core)
        await job.conductor.until(lambda c: bool(c.leased_to("cell-1")), "cell-1 has a lease")
        with pytest.raises(Refused, match="epoch 3"):
            await satellite.client.leave(Leave(2))
        with pytest.raises(Refused, match="epoch 3"):
            await satellite.client.join(Join(2, core.url))
        left = await satellite.client.leave(Leave(4))
        assert not left.training
        assert left.step == -1  # it keeps no weights
        assert job.conductor.leased_to("cell-1") == []  # counted or given back
        assert (await satellite.client.leave(Leave(4))).epoch == 4
        with pytest.raises(Refused):
            await satellite.client.join(Join(4, core.url))
        await satellite.join(5, core)
        await satellite.join(5, core)
        await job.conductor.let_anyone()
        await job.trained()


async def test_leases_are_renewed_while_a_sum_waits(tmp_path: Path) -> None:
    async with world(tmp_path, lambda index: "cell-1" if index == 0 else "", deterministic=False) as job:
        core, satellite = job.start("cell-0"), job.start("cell-1")
        await core.join(1)
        await satellite.join(1, core)
        await job.conductor.until(lambda c: bool(c.leased_to("cell-1")), "cell-1 has a lease")
        core.process.send_signal(signal.SIGSTOP)  # nobody takes the sum
        try:
            await job.conductor.until(lambda c: c.renewals >= 2, "two renewals", 20.0)
        finally:
            core.process.send_signal(signal.SIGCONT)
        await job.trained()


def test_what_is_wrong_with_the_command_line_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidemill_trainer", "--manifest", "absent.yaml", "--workdir", ".", "--cell", "cell-0", "--port", "1"]
    command += ["--conductor-url", "http://127.0.0.1:1", "--model", str(tiny_model(tmp_path / "model"))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": ""})
    assert ended.returncode == 2
    assert "TIDEMILL_TOKEN" in ended.stderr

"""The core takes a satellite's sum in completely or not at all, and once."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from tests.trainer.conductor import Conductor, entries
from tests.trainer.inputs import group, tiny_model
from tidemill.transfer import Region, TransferFailed, checksum
from tidemill.wire.conductor import ConductorClient
from tidemill.wire.http import Refused, Unreachable
from tidemill.wire.trainer import GradientSum, MemoryDescriptor
from tidemill_trainer import checkpoint
from tidemill_trainer import core as core_module
from tidemill_trainer.core import Core, Settings
from tidemill_trainer.model import Model
from tidemill_trainer.worker import Identity

TOKEN = "secret"
GRADIENT = b"\x00\x00\x80\x3f"  # 1.0


class DamagedTransport:
    """Every pull brings ones; the first `damaged` of them with one bit flipped."""

    def __init__(self, damaged: int) -> None:
        self.damaged = damaged

    def export(self, region: Region) -> MemoryDescriptor:
        return MemoryDescriptor("plain", "", region.address, region.nbytes)

    def withdraw(self, descriptor: MemoryDescriptor) -> None: ...

    def pull(self, source: MemoryDescriptor, into: Region, deadline_seconds: float) -> None:
        if source.peer == "gone":
            raise TransferFailed("gone")
        ctypes.memmove(into.address, GRADIENT * (into.nbytes // 4), into.nbytes)
        if self.damaged:
            self.damaged -= 1
            ctypes.memset(into.address + 100, 7, 1)

    def close(self) -> None: ...


async def core_with(tmp_path: Path, session: aiohttp.ClientSession, conductor: Conductor, damaged: int) -> Core:
    folder = tiny_model(tmp_path / "model")
    settings = Settings(folder, tmp_path / "checkpoints", tmp_path / "absent.db", torch.float32, 1.0, 1.0, 2, False)
    client = ConductorClient(conductor.url, TOKEN, session)
    model = Model.load(folder, torch.device("cpu"))
    core = Core(Identity("cell-0", "i"), settings, model, client, DamagedTransport(damaged), ThreadPoolExecutor(1))
    await core.start()
    return core


def offer(core: Core, leases: tuple[str, ...], peer: str = "") -> GradientSum:
    nbytes = core._model.layout.numel * 4
    source = MemoryDescriptor("plain", peer, 0, nbytes)
    return GradientSum("cell-1", 1, 0, "i", leases, source, checksum.of_bytes(GRADIENT * (nbytes // 4)), {"tokens": 5.0}, (0,))


@pytest.mark.parametrize("damaged", [0, 2])
async def test_a_sum_that_arrives_damaged_is_read_again_and_counted_once(tmp_path: Path, damaged: int) -> None:
    conductor = Conductor([entries([group()])], steps_per_burst=1)
    runner = await conductor.start(TOKEN)
    async with aiohttp.ClientSession() as session:
        core = await core_with(tmp_path, session, conductor, damaged)
        entry = conductor.steps[0][0]
        entry.state, entry.lease, entry.cell = "leased", "L1", "cell-1"
        await core.take_in(offer(core, ("L1",)))
        await core.take_in(offer(core, ("L1",)))  # the answer was lost and it is offered again
        assert conductor.contributions == [(0, "cell-1", ("L1",))]
        total = core._sum.total()
        assert total is not None
        assert (total == 1).all()
        assert core._sum.sums["tokens"] == 5.0
        with pytest.raises(RuntimeError, match="2 micro-steps, but 1"):
            await core.apply(0, 2)
    await runner.cleanup()


@pytest.mark.parametrize(("peer", "damaged"), [("gone", 0), ("", 99)])
async def test_a_sum_that_cannot_be_read_is_not_counted(tmp_path: Path, peer: str, damaged: int) -> None:
    conductor = Conductor([entries([group()])], steps_per_burst=1)
    runner = await conductor.start(TOKEN)
    async with aiohttp.ClientSession() as session:
        core = await core_with(tmp_path, session, conductor, damaged)
        with pytest.raises(Unreachable, match="sum of cell-1"):
            await core.take_in(offer(core, ("L1",), peer))
        assert conductor.contributions == []
        assert core._sum.total() is None
    await runner.cleanup()


async def test_a_sum_whose_leases_have_ended_is_refused_and_not_added(tmp_path: Path) -> None:
    conductor = Conductor([entries([group()])], steps_per_burst=1)
    runner = await conductor.start(TOKEN)
    async with aiohttp.ClientSession() as session:
        core = await core_with(tmp_path, session, conductor, 0)
        with pytest.raises(Refused, match="L1"):
            await core.take_in(offer(core, ("L1",)))
        total = core._sum.total()
        assert total is None or not total.any()
        assert core._sum.leases == set()
    await runner.cleanup()


async def test_on_a_full_disk_the_core_waits_and_reports_the_step_once_its_checkpoint_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conductor = Conductor([entries([group()])], steps_per_burst=1)
    runner = await conductor.start(TOKEN)
    write, tries = checkpoint.write, []

    def on_a_full_disk(folder: Path, *what: Any) -> None:
        tries.append(folder)
        assert conductor.applied == []
        if len(tries) < 3:
            raise checkpoint.DiskFull(f"{folder}: No space left on device")
        write(folder, *what)

    monkeypatch.setattr(checkpoint, "write", on_a_full_disk)
    monkeypatch.setattr(core_module, "DISK_SECONDS", 0.01)
    async with aiohttp.ClientSession() as session:
        core = await core_with(tmp_path, session, conductor, 0)
        entry = conductor.steps[0][0]
        entry.state, entry.lease, entry.cell = "leased", "L1", "cell-1"
        await core.take_in(offer(core, ("L1",)))
        await core.apply(0, 1)
    assert tries == [tmp_path / "checkpoints" / "step-000001"] * 3
    assert checkpoint.read_facts(tries[0]).step == 1
    assert len(conductor.applied) == 1
    await runner.cleanup()

"""What the agent is told about itself: its name, its cores and GPUs, and how it starts its children."""

import os
from pathlib import Path

import pytest

from tidemill.api.loading import load_rljob
from tidemill.wire.cell import CellKind
from tidemill_cell import commands, devices
from tidemill_cell.address import Address
from tidemill_cell.devices import Devices
from tidemill_cell.identity import parse_name

WHOLE = Path(__file__).parents[1] / "tidemill" / "api" / "whole.yaml"


@pytest.mark.parametrize(
    ("name", "kind", "ordinal"),
    [("cell-0", CellKind.CORE, 0), ("cell-12", CellKind.SATELLITE, 12), ("standalone-0", CellKind.STANDALONE, 0)],
)
def test_a_name_tells_kind_and_ordinal(name: str, kind: CellKind, ordinal: int) -> None:
    assert parse_name(name) == (kind, ordinal)


@pytest.mark.parametrize("name", ["", "cell", "cell-", "cell-x", "cell--1", "core-0", "cell-1-2"])
def test_another_name_is_refused_with_what_a_name_looks_like(name: str) -> None:
    with pytest.raises(ValueError, match="cells are called cell-0"):
        parse_name(name)


def test_cores_and_gpus_become_an_environment() -> None:
    share = Devices(devices.cores("3,1"), devices.gpus("0, GPU-abc"))
    assert share == Devices((1, 3), ("0", "GPU-abc"))
    assert share.environment == {
        "CUDA_VISIBLE_DEVICES": "0,GPU-abc",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": "2",
    }
    assert Devices((1, 3), threads=1).environment["OMP_NUM_THREADS"] == "1"
    assert Devices().environment == {"CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"}


def test_cores_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="not a list of core numbers"):
        devices.cores("one")


def test_children_are_started_as_the_job_says() -> None:
    job, share = load_rljob(WHOLE), Devices((0,), ())
    engine = commands.engine(job, "cell-1", 81, Path("/model"), Path("/work"), share, {"A": "b"})
    assert " ".join(engine.command[1:]) == (
        "-m tidemill_rollout.engine --model /model --port 81 --job quickstart --cell cell-1 --max-length 2048 --dtype float32 --max-executions 8"
    )
    assert engine.environment == {"A": "b", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    assert (engine.cores, engine.log) == ((0,), Path("/work/logs/cell-1-engine.log"))
    trainer = commands.trainer(
        "cell-0", Address("127.0.0.1", 82), Path("/work/job.yaml"), "http://conductor", Path("/model"), Path("/work"), share, os.environ
    )
    assert " ".join(trainer.command[1:]) == (
        "-m tidemill_trainer --manifest /work/job.yaml --workdir /work --cell cell-0 --port 82 --conductor-url http://conductor --model /model"
    )
    assert trainer.log == Path("/work/logs/cell-0-trainer.log")

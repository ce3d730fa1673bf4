from __future__ import annotations

import pytest

from tests.operator.world import NOW, manifest
from tidemill.api.loading import rljob_of
from tidemill.api.rljob import RLJob
from tidemill_operator.memory import PARAMETERS, core_node_bytes, host_memory_fits, parameters
from tidemill_operator.observed import Node


def job(memory: str = "1Gi", source: str = "hf:Org/Model", told: str = "", **cells: int) -> RLJob:
    document = manifest(cells={"count": 8, "capacity": 8, "resources": {"cpu": 1, "memory": memory}, **cells})
    document["spec"]["model"]["source"] = source
    document["metadata"]["annotations"] = {PARAMETERS: told} if told else {}
    return rljob_of(document)


def node(memory_gib: float, gpus: int = 0) -> Node:
    return Node("n", True, NOW, memory_gib * 2**30, gpus)


@pytest.mark.parametrize(
    ("source", "told", "count"),
    [
        ("hf:Qwen/Qwen3-8B", "", 8e9),
        ("hf:Qwen/Qwen3-0.6B-Base", "", 0.6e9),
        ("hf:Org/Model", "122e9", 122e9),
        ("hf:Org/Model", "", None),
        ("hf:a/b", "x", None),
    ],
)
def test_the_size_is_told_by_the_annotation_or_the_name(source: str, told: str, count: float | None) -> None:
    assert parameters(job(source=source, told=told)) == count


def test_the_published_122b_layout_needs_427_gb_and_more_on_a_core_node() -> None:
    """12 B of optimizer and 2 B of weights for each of 122e9 parameters, on 4 nodes of GPUs."""
    layout = rljob_of(
        {**manifest(cells={"count": 8, "nodesPerCell": 4, "gpusPerNode": 8, "capacity": 8}), }
    ).model_copy()  # fmt: skip
    layout = layout.model_copy(update={"spec": layout.spec.model_copy(update={"model": layout.spec.model.model_copy(update={"dtype": "bfloat16"})})})
    assert core_node_bytes(layout, 122e9) == pytest.approx(427e9 + 1.5e9)


def test_a_job_that_asks_for_too_little_is_told_how_much_it_needs() -> None:
    condition = host_memory_fits(job("4Gi", told="1e9"), [node(512)])
    assert (condition.status, condition.reason) == ("False", "TooLittleAsked")
    assert "set spec.cells.resources.memory to" in condition.message


def test_a_job_no_node_can_hold_is_refused_and_one_of_unknown_size_is_not() -> None:
    assert host_memory_fits(job("64Gi"), [node(32), node(48)]).reason == "NoNodeIsLargeEnough"
    assert host_memory_fits(job("1Gi", gpusPerNode=8), [node(512, gpus=4)]).reason == "NoNodeIsLargeEnough"
    assert host_memory_fits(job("16Gi"), [node(32)]).status == "Unknown"
    assert host_memory_fits(job("16Gi"), []).reason == "NoNodes"
    assert host_memory_fits(job("40Gi", told="1e9"), [node(64)]).status == "True"

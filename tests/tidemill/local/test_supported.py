"""What one machine does not do is refused by name."""

from pathlib import Path

import pytest

from tests.tidemill.api.test_loading import document
from tidemill.api import load_rljob, parse_rljob
from tidemill.local.supported import unsupported


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cells__nodesPerCell", 2),
        ("initFrom__checkpoint", "step-3"),
        ("schedule__extensions", ["Stay", "Oversubscribe"]),
    ],
)
def test_it_names_the_field(field: str, value: object) -> None:
    job = parse_rljob(document(**{field: value}))
    assert [v.path for v in unsupported(job.spec, 0)] == ["spec." + field.replace("__", ".")]


def test_refill_and_the_extensions_that_win_run_here() -> None:
    job = parse_rljob(document(schedule__dispatch="Refill", schedule__extensions=["EarlyReturn", "GainGate", "Stay"]))
    assert unsupported(job.spec, 0) == ()


def test_gpus_that_are_not_here_are_refused() -> None:
    job = parse_rljob(document(cells__gpusPerNode=2))
    assert unsupported(job.spec, 6) == ()
    (violation,) = unsupported(job.spec, 5)
    assert str(violation).startswith("spec.cells.gpusPerNode: is 2, which makes 6 for 3 cells, but this machine has 5 GPUs; lower it")


def test_standalone_cells_of_two_nodes_are_refused() -> None:
    job = parse_rljob(document(cells__standalone={"replicas": 1, "nodesPerReplica": 2}))
    assert [v.path for v in unsupported(job.spec, 0)] == ["spec.cells.standalone.nodesPerReplica"]


@pytest.mark.parametrize("file", sorted(Path(__file__).parents[3].glob("examples/*/rljob.yaml")), ids=lambda f: f.parent.name)
def test_the_examples_run_here(file: Path) -> None:
    assert unsupported(load_rljob(file).spec, 0) == ()

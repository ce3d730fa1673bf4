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
        ("gateway__replicas", 2),
        ("initFrom__checkpoint", "step-3"),
        ("logging__tensorboard", True),
    ],
)
def test_it_names_the_field(field: str, value: object) -> None:
    job = parse_rljob(document(**{"logging__tensorboard": False, field: value}))
    assert [v.path for v in unsupported(job)] == ["spec." + field.replace("__", ".")]


@pytest.mark.parametrize("file", sorted(Path(__file__).parents[3].glob("examples/*/rljob.yaml")), ids=lambda f: f.parent.name)
def test_the_examples_run_here(file: Path) -> None:
    assert unsupported(load_rljob(file)) == ()

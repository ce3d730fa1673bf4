"""A cell as Kubernetes shows it."""

import pytest
from pydantic import ValidationError

from tidemill.api import GPUCell, InvalidManifest, gpucell_of
from tidemill.api.explain import explain


def document(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "tidemill.dev/v1alpha1",
        "kind": "GPUCell",
        "metadata": {"name": "quickstart-cell-0"},
        "spec": {"job": "quickstart", "ordinal": 0, "kind": "Core", "role": "Training", "epoch": 4, **spec},
    }


def test_a_cell_is_read_and_written_as_it_was() -> None:
    cell = GPUCell.model_validate(document(pin="Rollout"))
    assert GPUCell.model_validate(cell.model_dump(by_alias=True, mode="json")) == cell


@pytest.mark.parametrize("wrong", [{"epoch": -1}, {"role": "Idle"}, {"kind": "core"}, {"pinned": "Rollout"}])
def test_what_no_cell_can_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GPUCell.model_validate(document(**wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epoch": -1}, "spec.epoch: is -1"),
        ({"pinned": "Rollout"}, "spec.pinned: unknown field; did you mean pin?"),
        ({"ordinal": 1}, "spec.kind: is Core, but the core is the cell with ordinal 0"),
        ({"kind": "Standalone"}, "spec.kind: is Standalone, and a standalone cell only ever rolls out"),
    ],
)
def test_a_wrong_cell_is_explained(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidManifest, match="gpucell quickstart-cell-0: ") as caught:
        gpucell_of(document(**wrong))
    assert any(error.startswith(said) for error in caught.value.errors)


def test_a_cell_is_explained_field_by_field() -> None:
    assert "Keep the cell in this role" in explain("gpucell.spec")
    assert explain("gcell.status.lastFlip.callsInFlight").startswith("gpucell.status.lastFlip.callsInFlight <integer>")

"""A cell as Kubernetes shows it."""

import pytest
from pydantic import ValidationError

from tidemill.api import GPUCell


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

"""When a change that was waited for has come about."""

from typing import Any

import pytest

from tests.tidemill.cluster import documents
from tests.tidemill.cluster.documents import condition
from tidemill.cluster.changes import is_back, is_drained, is_flipped, refuse_if_over
from tidemill.cluster.following import Seen
from tidemill.cluster.objects import cell_of, job_of
from tidemill.cluster.trouble import ClusterTrouble
from tidemill.wire.cell import Role


def seen(status: dict[str, Any], **spec: Any) -> Seen:
    return Seen(job_of(documents.job()), (cell_of(documents.cell("cell-1", status, **spec)),))


CORDONED = {"conditions": [condition("Cordoned", "True", "Cordoned")]}


def test_a_cell_is_drained_when_the_conductor_counts_it_out_and_it_has_come_back() -> None:
    assert is_drained(seen(CORDONED), "cell-1")
    assert not is_drained(seen({}), "cell-1")
    assert not is_drained(seen({"conditions": [condition("Cordoned", "False", "Pending")]}), "cell-1")
    assert not is_drained(seen({**CORDONED, "role": "Training"}), "cell-1")
    assert not is_drained(seen({**CORDONED, "phase": "Flipping"}), "cell-1")
    assert not is_drained(seen(CORDONED, epoch=2), "cell-1")  # the order to come back is on its way
    assert not is_drained(seen(CORDONED), "cell-2")


def test_a_cell_is_back_when_the_operator_has_seen_the_change() -> None:
    assert is_back(seen({}), "cell-1")
    assert not is_back(seen({"observedGeneration": 0}), "cell-1")
    assert not is_back(seen(CORDONED), "cell-1")


def test_a_cell_is_flipped_when_it_acknowledged_the_grant() -> None:
    assert is_flipped(seen({}), "cell-1", Role.ROLLOUT)
    assert not is_flipped(seen({}), "cell-1", Role.TRAINING)
    assert not is_flipped(seen({}, epoch=2), "cell-1", Role.ROLLOUT)
    assert not is_flipped(seen({"phase": "Starting"}), "cell-1", Role.ROLLOUT)
    assert not is_flipped(seen({"observedGeneration": 0}), "cell-1", Role.ROLLOUT)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_nothing_of_a_job_that_has_ended_is_changed(phase: str) -> None:
    with pytest.raises(ClusterTrouble, match=phase):
        refuse_if_over(job_of(documents.job(status={"phase": phase})))

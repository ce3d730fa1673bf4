"""A job as it is drawn: what cells do, and what is not fine."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from tests.tidemill.cluster import documents
from tests.tidemill.cluster.documents import condition
from tidemill.api.status import JobPhase
from tidemill.cluster.objects import cell_of, in_order, job_of
from tidemill.cluster.picture import as_document, cell_word, complaints, view_of
from tidemill.cluster.sheet import ago, sheet
from tidemill.cluster.trouble import ClusterTrouble
from tidemill.report.live import line


def word(status: dict[str, Any], phase: JobPhase = JobPhase.RUNNING, **spec: Any) -> str:
    return cell_word(cell_of(documents.cell("cell-1", status, **spec)), phase)


def troubles(*conditions: dict[str, Any], phase: str = "Running", **spec: Any) -> list[str]:
    job = job_of(documents.job(status={**documents.STATUS, "phase": phase, "conditions": list(conditions)}, **spec))
    return [c.type for c in complaints(job, ())]


def test_one_word_says_what_a_cell_does() -> None:
    assert word({}) == "Rollout"
    assert word({"role": "Training"}) == "Training"
    assert word({}, epoch=2) == "Flipping"
    assert word({"phase": "Flipping"}) == "Flipping"
    assert word({"epoch": 5}, epoch=2) == "Rollout"  # the conductor decided by itself, and the operator has not written it yet
    assert word({"phase": "Failed"}) == "Failed"
    assert word({"role": None, "phase": "Starting"}) == "Starting"
    assert word({"pods": []}) == "No pods"
    assert word({}, JobPhase.SUSPENDED) == "No pods"


@pytest.mark.parametrize("kind", ["Placed", "PodsHealthy", "Created", "ConductorReachable", "HostMemoryFits"])
def test_these_are_bad_when_false_and_say_nothing_when_unknown(kind: str) -> None:
    assert troubles(condition(kind, "False")) == [kind]
    assert troubles(condition(kind, "True")) == troubles(condition(kind, "Unknown")) == []


@pytest.mark.parametrize("kind", ["Invalid", "Failed"])
def test_these_are_bad_when_true(kind: str) -> None:
    assert troubles(condition(kind, "True")) == [kind]
    assert troubles(condition(kind, "False")) == []


def test_the_sum_is_told_only_where_none_of_its_parts_is() -> None:
    ready = condition("Ready", "False", "Paused", "the disk is full")
    assert troubles(condition("Placed", "False"), ready) == ["Placed"]
    assert troubles(ready) == ["Ready"]
    assert troubles(ready, suspend=True) == troubles(ready, phase="Succeeded") == []


def test_a_cell_that_is_not_ready_is_among_the_complaints_with_its_name() -> None:
    cell = cell_of(documents.cell("cell-1", {"conditions": [condition("Ready", "False", "NotReady", "its agent has not reported yet")]}))
    found = complaints(job_of(documents.job(status={"phase": "Starting"})), (cell,))
    assert [(c.about, c.type, c.message) for c in found] == [("cell-1", "Ready", "its agent has not reported yet")]


def test_cells_stand_in_the_order_of_leaving_and_standalone_ones_last() -> None:
    assert [c.name for c in in_order([cell_of(d) for d in documents.cells()])] == ["cell-0", "cell-1", "standalone-0"]


def test_a_job_that_was_just_made_can_be_drawn() -> None:
    job = job_of({"metadata": {"name": "new", "namespace": "sea"}, "spec": {"schedule": {"steps": 4}}})
    assert line(view_of(job, ())) == "Pending step 0/4 burst 0 version -1 water 0/0 score -"


def test_a_field_that_a_newer_operator_adds_is_passed_over_and_a_word_that_it_adds_is_named() -> None:
    status = {**documents.STATUS, "wind": "north", "flips": [{**documents.FLIP, "cell": "cell-0", "cause": "tide"}]}
    assert job_of(documents.job(status=status)).status.flips[0].cell == "cell-0"
    with pytest.raises(ClusterTrouble, match=r"rljob sail: status.phase is 'Sailing', which this tidemill does not know; install"):
        job_of(documents.job(status={**documents.STATUS, "phase": "Sailing"}))


def test_the_sheet_fits_a_screen_and_says_since_when() -> None:
    out = io.StringIO()
    cells = in_order([cell_of(d) for d in documents.cells()])
    Console(file=out, width=110).print(sheet(job_of(documents.job()), cells, 1772359260.0))  # a minute after documents.TIME
    shown = out.getvalue()
    assert len(shown.splitlines()) < 24
    for part in ("started 60 s ago", "decided by the operator, term 2", "drain 2.2, sleep 6.2", "PodsHealthy  60 s ago"):
        assert part in shown
    assert shown.count("OOMKilled:") == 1  # not also beside the numbers


def test_times_are_told_in_the_unit_that_fits() -> None:
    at = 1772359200.0
    assert [ago(documents.TIME, at + s) for s in (0, 119, 120, 7199, 7200, 200_000)] == [
        "0 s ago", "119 s ago", "2 min ago", "119 min ago", "2 h ago", "2 d ago",
    ]  # fmt: skip
    assert ago("", at) == ""


def test_programs_get_the_fields_as_the_cluster_names_them() -> None:
    told = json.loads(json.dumps(as_document(job_of(documents.job()), (cell_of(documents.cells()[2]),))))
    assert told["status"]["limitedBy"] == "Training"
    assert told["cells"][0]["status"]["lastFlip"]["callsInFlight"] == 3

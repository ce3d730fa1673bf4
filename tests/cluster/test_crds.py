"""The definitions on a real API server: what it refuses, how it says so, what may change, and what people see."""

import json
import re
from collections.abc import Iterator

import pytest
from kubernetes.client import ApiException

from tests.cluster.api_server import ApiServer
from tests.cluster.manifests.documents import Document, changed, gpucell, rljob
from tests.cluster.manifests.objects import Objects, objects_in_a_namespace
from tests.cluster.manifests.wrong import CHANGED, CREATED, Wrong
from tidemill.api import InvalidManifest, gpucell_of, rljob_of
from tidemill.api.cel import MUTABLE


@pytest.fixture(scope="module")
def objects(api_server: ApiServer) -> Iterator[Objects]:
    with objects_in_a_namespace(api_server) as made:
        yield made


def document(wrong: Wrong, name: str = "job") -> Document:
    return (gpucell if wrong.kind == "GPUCell" else rljob)(name, wrong.changes)


def refusal(caught: pytest.ExceptionInfo[ApiException]) -> str:
    body = caught.value.body
    try:
        return str(json.loads(body)["message"])
    except ValueError:
        return str(body)


@pytest.mark.parametrize("kind", ["rljobs", "gpucells"])
def test_the_definition_is_established_and_structural(api_server: ApiServer, kind: str) -> None:
    definition = api_server.get("crd", f"{kind}.tidemill.dev")
    conditions = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("wrong", [w for w in CREATED if w.by == "server"], ids=str)
def test_a_wrong_manifest_is_refused_by_the_server_and_by_the_models(objects: Objects, wrong: Wrong) -> None:
    made = document(wrong)
    with pytest.raises(ApiException) as caught:
        objects.create(made)
    for part in wrong.says:
        assert part in refusal(caught)
    if "too large" not in wrong.says:
        with pytest.raises(InvalidManifest):
            (gpucell_of if wrong.kind == "GPUCell" else rljob_of)(made)


@pytest.mark.parametrize("wrong", [w for w in CREATED if w.by == "models"], ids=str)
def test_what_the_server_cannot_tell_the_models_refuse(objects: Objects, wrong: Wrong) -> None:
    stored = objects.create(document(wrong), dry=True)
    with pytest.raises(InvalidManifest) as caught:
        rljob_of(stored)
    for part in wrong.says:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 1000  # it goes into a condition


@pytest.mark.parametrize(("number", "wrong"), list(enumerate(CHANGED)), ids=[str(w) for w in CHANGED])
def test_what_may_not_change_is_refused_with_what_to_do(objects: Objects, number: int, wrong: Wrong) -> None:
    name = f"changed-{number}"
    stored = objects.create((gpucell if wrong.kind == "GPUCell" else rljob)(name, wrong.before))
    with pytest.raises(ApiException) as caught:
        objects.replace(changed(stored, wrong.changes))
    for part in wrong.says:
        assert part in refusal(caught)


def test_what_may_change_changes(objects: Objects) -> None:
    values = {
        "spec.schedule.steps": 24,
        "spec.schedule.extensions": ["GainGate"],
        "spec.timeouts": {"executionSeconds": 60},
        "spec.suspend": True,
        "spec.cells.standalone.replicas": 2,
        "spec.ttlSecondsAfterFinished": 60,
        "spec.activeDeadlineSeconds": 3600,
    }
    assert values.keys() == MUTABLE
    stored = objects.create(rljob("mutable"))
    after = objects.replace(changed(stored, values))
    assert after["metadata"]["generation"] == 2
    assert after["spec"]["schedule"]["steps"] == 24
    assert after["spec"]["timeouts"]["groupSeconds"] == 14400  # filled in
    assert objects.replace(changed(after, {"spec.ttlSecondsAfterFinished": None}))["spec"].get("ttlSecondsAfterFinished") is None


def test_a_job_as_large_as_it_may_be_can_still_be_suspended(objects: Objects) -> None:
    """What a rule costs grows with what it compares, and the server gives up on one that costs too much."""
    command = ["x" * 4000 for _ in range(100)]
    container = {"name": "cell", "env": [{"name": f"V{number}", "value": "v" * 100} for number in range(2000)]}
    stored = objects.create(
        rljob("large", {"spec.harness": {"preset": "generic", "command": command}, "spec.cells.template": {"spec": {"containers": [container]}}})
    )
    assert objects.replace(changed(stored, {"spec.suspend": True}))["spec"]["suspend"] is True


def test_a_cell_takes_a_larger_epoch_with_a_role_and_pins_and_cordons_at_any_time(objects: Objects) -> None:
    stored = objects.create(gpucell("granted-cell-0"))
    stored = objects.replace(changed(stored, {"spec.role": "Training", "spec.epoch": 5}))
    stored = objects.replace(changed(stored, {"spec.pin": "Rollout", "spec.cordon": True}))
    assert gpucell_of(stored).spec.epoch == 5


def test_steps_never_fall_below_what_is_done_and_the_operator_may_always_write_what_is(objects: Objects) -> None:
    stored = objects.create(rljob("underway"))
    stored = objects.replace_status(changed(stored, {"status": {"step": 6, "progress": "6/12"}}))
    with pytest.raises(ApiException) as caught:
        objects.replace(changed(stored, {"spec.schedule.steps": 5}))
    assert "spec.schedule.steps" in refusal(caught)
    assert "set it to status.step" in refusal(caught)
    stored = objects.replace(changed(stored, {"spec.schedule.steps": 6}))
    assert objects.replace_status(changed(stored, {"status.step": 7}))["status"]["step"] == 7


def test_status_and_spec_are_written_apart(objects: Objects) -> None:
    stored = objects.create(rljob("apart", {"status": {"phase": "Succeeded"}}))
    assert "status" not in stored
    stored = objects.replace_status(changed(stored, {"status.phase": "Running", "spec.suspend": True}))
    assert stored["status"] == {"phase": "Running"}
    assert stored["spec"]["suspend"] is False
    assert stored["metadata"]["generation"] == 1
    assert objects.replace(changed(stored, {"status": {}}))["status"] == {"phase": "Running"}


@pytest.mark.parametrize("status", [{"phase": "Dreaming"}, {"limitedBy": "Coffee"}, {"flips": [{"cell": "cell-0"}]}, {"flips": [{}] * 21}])
def test_a_status_that_says_nothing_known_is_refused(objects: Objects, status: Document) -> None:
    stored = objects.create(rljob(f"status-{abs(hash(str(status)))}"))
    with pytest.raises(ApiException):
        objects.replace_status(changed(stored, {"status": status}))


def test_conditions_are_one_a_type_whoever_writes_them(api_server: ApiServer, objects: Objects) -> None:
    objects.create(rljob("conditions"))
    for manager, kind in (("one", "Ready"), ("other", "Invalid"), ("one", "Ready")):
        applied = {
            "apiVersion": "tidemill.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "conditions"},
            "status": {"conditions": [{"type": kind, "status": "True", "reason": manager}]},
        }
        api_server.kubectl(
            "apply",
            "-n",
            objects.namespace,
            "--server-side",
            "--subresource=status",
            f"--field-manager={manager}",
            "-f",
            "-",
            input=json.dumps(applied),
        )
    found = api_server.get("rljob", "conditions", "-n", objects.namespace)["status"]["conditions"]
    assert sorted((c["type"], c["reason"]) for c in found) == [("Invalid", "other"), ("Ready", "one")]


def test_the_columns_tell_the_story(api_server: ApiServer, objects: Objects) -> None:
    stored = objects.create(rljob("story"))
    status = {"phase": "Running", "progress": "12/48", "water": "37/64", "limitedBy": "Rollout", "cellsInRollout": 2, "cellsInTraining": 1}
    objects.replace_status(changed(stored, {"status": {**status, "scores": {"last": 0.44}, "eta": "3h20m"}}))
    heads, values = _table(api_server.kubectl("get", "rlj", "story", "-n", objects.namespace))
    assert heads == ["NAME", "PHASE", "STEP", "WATER", "LIMITED-BY", "ROLLOUT", "TRAINING", "SCORE", "ETA", "AGE"]
    assert values[:9] == ["story", "Running", "12/48", "37/64", "Rollout", "2", "1", "0.44", "3h20m"]
    cell = objects.create(gpucell("story-cell-0"))
    state = {"role": "Training", "epoch": 5, "phase": "Ready", "policyVersion": 3, "node": "gpu-7", "lastFlipText": "Training in 8.5 s"}
    objects.replace_status(changed(cell, {"status": state}))
    heads, values = _table(api_server.kubectl("get", "gcell", "story-cell-0", "-n", objects.namespace))
    assert heads == ["NAME", "JOB", "ROLE", "EPOCH", "STATE", "VERSION", "NODE", "LAST-FLIP", "AGE"]
    assert values[:8] == ["story-cell-0", "job", "Training", "5", "Ready", "3", "gpu-7", "Training in 8.5 s"]
    assert "story-cell-0" in api_server.kubectl("get", "tidemill", "-n", objects.namespace)


def _table(text: str) -> tuple[list[str], list[str]]:
    heads, values = text.splitlines()
    return re.split(r"\s{2,}", heads.strip()), re.split(r"\s{2,}", values.strip())


@pytest.mark.parametrize("kind", ["RLJob", "GPUCell"])
def test_every_field_is_described_to_kubectl_explain(api_server: ApiServer, kind: str) -> None:
    published = json.loads(api_server.kubectl("get", "--raw", "/openapi/v3/apis/tidemill.dev/v1alpha1"))
    schema = published["components"]["schemas"][f"dev.tidemill.v1alpha1.{kind}"]
    parts = {part: schema["properties"][part] for part in ("spec", "status")}
    assert not list(_undescribed(parts, kind.lower()))
    recursive = api_server.kubectl("explain", f"{kind.lower()}.spec", "--recursive")
    assert all(re.search(rf"^\s+{name}\t<", recursive, re.MULTILINE) for name in schema["properties"]["spec"]["properties"])


def test_kubectl_explain_says_what_a_field_means(api_server: ApiServer) -> None:
    assert "unfinished executions" in api_server.kubectl("explain", "rljob.status.waterlevel").lower()
    assert "AdamW's learning rate" in api_server.kubectl("explain", "rljob.spec.algorithm.learningRate")


def _undescribed(properties: Document, path: str) -> Iterator[str]:
    for name, field in properties.items():
        if not field.get("description"):
            yield f"{path}.{name}"
        yield from _undescribed(field.get("properties") or field.get("items", {}).get("properties", {}), f"{path}.{name}")

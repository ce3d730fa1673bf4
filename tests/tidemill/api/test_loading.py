"""A manifest is read whole, and every mistake in it is named at once."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tidemill.api import InvalidManifest, load_rljob, parse_rljob, rljob_of
from tidemill.api.explain import UnknownPath, explain
from tidemill.api.model import amount

WHOLE = Path(__file__).parent / "whole.yaml"
WRONG = (
    st.none() | st.text(max_size=3) | st.lists(st.integers(), max_size=2) | st.dictionaries(st.sampled_from(["source", "count", "steps"]), st.none())
)


def document(**changes: Any) -> dict[str, Any]:
    """The whole manifest with some fields replaced: `cells__count=1` sets spec.cells.count."""
    made = copy.deepcopy(yaml.safe_load(WHOLE.read_text()))
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = made["spec"]
        for parent in parents:
            target = target[parent]
        target[last] = value
    return made


def errors(**changes: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidManifest) as caught:
        parse_rljob(document(**changes))
    return caught.value.errors


def test_the_whole_manifest_is_read() -> None:
    job = load_rljob(WHOLE)
    assert job.metadata.name == "quickstart"
    assert job.spec.schedule.groups_per_step == 4
    assert job.spec.algorithm.sequence_clip == (0.995, 1.005)
    assert amount(job.spec.cells.resources.memory) == 6 * 2**30


def test_all_mistakes_are_named_at_once_with_the_nearest_name() -> None:
    found = errors(cells__count=0, schedule__mode="elastic", schedule__stepz=3, schedul=1, cells__resources__memory="6GB")
    assert len(found) == 5
    assert "spec.schedul: unknown field; did you mean schedule?" in found
    assert "spec.schedule.stepz: unknown field; did you mean steps?" in found
    assert any(e.startswith("spec.cells.count: is 0") for e in found)
    assert any("'elastic'" in e and "'Elastic', 'Colocate' or 'Async'" in e for e in found)
    assert any(e.startswith("spec.cells.resources.memory: is '6GB'") and "6Gi" in e for e in found)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"cells__count": 1}, "spec.cells.count"),
        ({"schedule__mode": "Async", "schedule__asyncTrainingCells": 3}, "spec.schedule.asyncTrainingCells"),
        ({"schedule__prefetchSteps": 5}, "spec.schedule.maxStaleness"),
        ({"sampling__maxTokens": 2048}, "spec.sampling.maxTokens"),
        ({"timeouts__groupSeconds": 10}, "spec.timeouts.groupSeconds"),
        ({"algorithm__sequenceClip": [1.1, 1.2]}, "spec.algorithm.sequenceClip"),
        ({"harness__preset": "generic"}, "spec.harness.command"),
        ({"harness__version": "1.2.3"}, "spec.harness.version"),
        ({"cells__parallelism__training__tensor": 4}, "spec.cells.parallelism.training"),
    ],
)
def test_a_rule_between_fields_names_the_field_to_change(changes: dict[str, Any], path: str) -> None:
    assert any(e.startswith(path + ": ") for e in errors(**changes))


@pytest.mark.parametrize("value", ["yes", "true", 1])
def test_what_is_not_a_boolean_is_refused(value: object) -> None:
    assert any("spec.schedule.streaming" in e for e in errors(schedule__streaming=value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1e-5", True])
def test_what_is_not_a_finite_number_is_refused(value: object) -> None:
    assert any("spec.algorithm.learningRate" in e for e in errors(algorithm__learningRate=value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not valid YAML"),
        ("a: 1\na: 2", "stands twice"),
        ("", "0 YAML documents"),
        ("a: 1\n---\nb: 2", "2 YAML documents"),
        ("- 1", "is a list"),
        ("kind: Pod", "kind: is 'Pod'"),
        ("kind: 2026-01-01", "kind: is '2026-01-01'"),
    ],
)
def test_a_file_that_is_no_rljob_says_what_it_is(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(InvalidManifest, match=r"rljob job\.yaml") as caught:
        load_rljob(file)
    assert said in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match=r"cannot read .*nothing\.yaml"):
        load_rljob(tmp_path / "nothing.yaml")


def test_an_exponent_without_a_point_is_a_number(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(WHOLE.read_text().replace("1.0e-5", "1e-5"))
    assert load_rljob(file).spec.algorithm.learning_rate == 1e-5


def test_every_field_can_be_explained() -> None:
    def walk(path: str, schema: dict[str, Any], defs: dict[str, Any]) -> None:
        for name, field in schema.get("properties", {}).items():
            assert explain(f"{path}.{name}"), f"{path}.{name}"
            assert field.get("description"), f"{path}.{name} has no description"
            ref = field.get("$ref") or next((a["$ref"] for a in field.get("allOf", []) if "$ref" in a), None)
            if ref and "properties" in defs[ref.rsplit("/", 1)[1]]:
                walk(f"{path}.{name}", defs[ref.rsplit("/", 1)[1]], defs)

    from tidemill.api import RLJob

    schema = RLJob.model_json_schema(by_alias=True)
    walk("rljob", schema, schema["$defs"])


def test_an_unknown_path_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownPath, match="did you mean schedule"):
        explain("rljob.spec.shedule")


def stored(**metadata: object) -> dict[str, Any]:
    """The whole manifest as an API server returns it."""
    made = document()
    made["metadata"] |= {"uid": "0c1", "resourceVersion": "12", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z", **metadata}
    return made


def test_what_only_kubernetes_reads_in_an_object_is_passed_over() -> None:
    job = rljob_of(
        stored(managedFields=[{"manager": "kubectl"}], ownerReferences=[{"kind": "Queue"}], finalizers=["foregroundDeletion"], selfLink="x")
    )
    assert (job.metadata.uid, job.metadata.generation) == ("0c1", 3)
    assert job.spec == parse_rljob(document()).spec


def test_an_object_is_strict_in_spec_and_status_and_all_its_mistakes_are_named() -> None:
    made = stored()
    made["spec"]["schedul"] = {}
    made["status"] = {"phase": "Dreaming", "kopf": {}}
    with pytest.raises(InvalidManifest) as caught:
        rljob_of(made)
    assert [error.split(":")[0] for error in caught.value.errors] == ["spec.schedul", "status.phase", "status.kopf"]


@pytest.mark.parametrize("thing", [None, [], "rljob", {}, {"metadata": []}, {"metadata": None}, {"metadata": {"name": 3}}, {"spec": "x"}])
def test_what_is_no_object_at_all_is_refused_in_words(thing: object) -> None:
    with pytest.raises(InvalidManifest):
        rljob_of(thing)


@pytest.mark.parametrize("levels", [300, 100_000])
def test_a_manifest_nested_too_deeply_is_refused_in_words(tmp_path: Path, levels: int) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(WHOLE.read_text().replace("template: {}                   #", f"template: {'{spec: ' * levels}{{}}{'}' * levels} #"))
    with pytest.raises(InvalidManifest, match="nested too deeply"):
        load_rljob(file)


def test_a_message_stays_readable_whatever_was_written() -> None:
    long = "x" * 2**20
    found = errors(model__source=long, schedule__mode=long, harness__env={long: long}, **{long: 1})
    assert len(found) >= 4
    assert all(len(error) < 1000 for error in found)


def test_bytes_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("metadata: {name: !!binary aGVsbG8=}")
    with pytest.raises(InvalidManifest, match="JSON has no word for"):
        load_rljob(file)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"harness__preset": "raect"}, "spec.harness.preset"),
        ({"harness__env": {"A=B": "c"}}, "spec.harness.env"),
        ({"cells__template": {"nodeSelector": {}}}, "spec.cells.template"),
        ({"cells__template": {"spec": []}}, "spec.cells.template"),
        ({"cells__resources__cpu": 0.5}, "spec.cells.resources.cpu"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
        ({"cells__count": 1_000_000}, "spec.cells.count"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_here_too(changes: dict[str, Any], path: str) -> None:
    assert any(e.startswith(path + ": ") for e in errors(**changes))


@given(st.dictionaries(st.sampled_from(["model", "cells", "schedule", "sampling", "harness", "tasks", "timeouts", "evaluation"]), WRONG, min_size=1))
def test_however_much_is_wrong_all_that_can_be_read_is_held_to_the_rules(drawn: dict[str, object]) -> None:
    broken = document(timeouts__groupSeconds=10, harness__preset="reakt", sampling__temperature=1e-9)
    for section, value in drawn.items():
        broken["spec"][section] = value
    with pytest.raises(InvalidManifest) as caught:
        parse_rljob(broken)
    named = {error.split(": ")[0] for error in caught.value.errors}
    for section, path in (("timeouts", "groupSeconds"), ("harness", "preset"), ("sampling", "temperature")):
        assert section in drawn or f"spec.{section}.{path}" in named

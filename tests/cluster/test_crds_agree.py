"""What a real API server fills in and refuses is what the models fill in and refuse, whatever anybody writes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.api_server import ApiServer
from tests.cluster.manifests.documents import Document, changed, rljob
from tests.cluster.manifests.objects import Objects, objects_in_a_namespace
from tidemill.api import InvalidManifest, RLJob, load_rljob, rljob_of
from tidemill.api.crd import KINDS, crd

_EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted([*_EXAMPLES.glob("*/rljob.yaml"), *_EXAMPLES.glob("kubernetes/*.yaml")])


@pytest.fixture(scope="module")
def objects(api_server: ApiServer) -> Iterator[Objects]:
    with objects_in_a_namespace(api_server) as made:
        yield made


def _fields(schema: Document, path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _fields(field, f"{path}.{name}")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_server_fills_in_what_the_models_fill_in(objects: Objects, file: Path) -> None:
    stored = objects.create(yaml.safe_load(file.read_text()), dry=True)
    job = load_rljob(file)
    assert rljob_of(stored).spec == job.spec
    assert _quantities_as_text(stored["spec"]) == job.model_dump(by_alias=True, mode="json", exclude_none=True)["spec"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_server_and_the_models_say_the_same_of_random_jobs(objects: Objects, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.sampled_from(sorted(_VALUES)), unique=True, max_size=6))
    made = rljob("job", {path: data.draw(_VALUES[path], label=path) for path in some})
    stored = objects.taken(made)
    if stored is None:
        assert mistakes(made)
        return
    expected = rljob_of(made)
    assert rljob_of(stored).spec == expected.spec
    assert _quantities_as_text(stored["spec"]) == expected.model_dump(by_alias=True, mode="json", exclude_none=True)["spec"]


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "spec.schedule.mode": st.sampled_from(["Elastic", "Colocate", "Async"]),
    "spec.schedule.asyncTrainingCells": st.integers(1, 4),
    "spec.schedule.maxStaleness": st.integers(0, 3) | st.none(),
    "spec.schedule.prefetchSteps": st.integers(0, 6),
    "spec.schedule.stepsPerBurst": st.integers(1, 3),
    "spec.cells.count": st.integers(1, 4),
    "spec.cells.standalone": st.fixed_dictionaries({}, optional={"replicas": st.integers(0, 2), "nodesPerReplica": st.integers(1, 2)}),
    "spec.cells.nodesPerCell": st.integers(1, 3),
    "spec.cells.gpusPerNode": st.integers(0, 8),
    "spec.cells.parallelism": st.fixed_dictionaries(
        {},
        optional={
            "training": st.fixed_dictionaries({}, optional={k: st.integers(1, 3) for k in ("tensor", "context", "expert", "pipeline")}),
            "rollout": st.fixed_dictionaries({}, optional={k: st.integers(1, 4) for k in ("tensor", "replicas")}),
        },
    ),
    "spec.cells.resources": st.fixed_dictionaries(
        {}, optional={"cpu": st.integers(1, 9) | st.sampled_from(["500m", "1.5"]), "memory": st.just("6Gi")}
    ),
    "spec.cells.template": st.sampled_from([{}, {"spec": {"nodeSelector": {"a": "b"}}}]),
    "spec.sampling.maxTokens": st.sampled_from([1, 2047, 2048]),
    "spec.timeouts": st.fixed_dictionaries({}, optional={"executionSeconds": st.floats(0.5, 20000), "groupSeconds": st.integers(1, 20000)}),
    "spec.algorithm": st.fixed_dictionaries({}, optional={"sequenceClip": st.lists(st.floats(0.5, 1.5), min_size=2, max_size=2)}),
    "spec.harness": st.fixed_dictionaries(
        {},
        optional={
            "preset": st.sampled_from(["react", "mini-swe-agent", "generic", "codex", "aider"]),
            "version": st.sampled_from(["", "1.2.3", "1.2.3-beta.1", "latest"]),
            "command": st.lists(st.text("ab é", max_size=3), max_size=2),
            "env": st.dictionaries(st.sampled_from(["A", "B_1"]), st.text(max_size=5), max_size=2),
        },
    ),
    "spec.sandbox": st.fixed_dictionaries({}, optional={"resources": st.fixed_dictionaries({}, optional={"memory": st.just("256Mi")})}),
    "spec.checkpoints": st.fixed_dictionaries({}, optional={"keep": st.integers(2, 4), "storage": st.just({"size": "1Gi"})}),
    "spec.activeDeadlineSeconds": st.integers(0, 2),
    "spec.ttlSecondsAfterFinished": st.integers(-1, 1),
}


_PLACES = sorted(_fields(crd(KINDS[0])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec"))
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["Elastic", "path:x", "500m", "generic", "1.0", 2.0])
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["spec", "metadata", "cpu", "x"]), inner, max_size=3),
    max_leaves=6,
)
# What only the models can tell, see manifests/wrong.py.
_THE_MODELS_OWN = re.compile(r"spec\.(\w+\.template|harness\.env): ")


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(_PLACES), _ANYTHING, min_size=1, max_size=2))
def test_whatever_is_written_anywhere_the_server_and_the_models_agree(objects: Objects, drawn: dict[str, Any]) -> None:
    made = _FILLED
    for path in sorted(drawn):  # a section before what is in it
        made = changed(made, {path: drawn[path]}) if _has_section(made, path) else made
    stored = objects.taken(made)
    if stored is None:
        assert mistakes(made)
    else:
        assert all(_THE_MODELS_OWN.match(mistake) for mistake in mistakes(stored))


def mistakes(document: Document) -> tuple[str, ...]:
    try:
        rljob_of(document)
    except InvalidManifest as cause:
        return cause.errors
    return ()


_FILLED = RLJob.model_validate(rljob()).model_dump(by_alias=True, mode="json", exclude={"status", "metadata"}, exclude_none=True) | {
    "metadata": {"name": "job"}
}


def _has_section(document: Document, path: str) -> bool:
    section: Any = document
    for part in path.split(".")[:-1]:
        section = section.get(part) if isinstance(section, dict) else None
    return isinstance(section, dict)


def _quantities_as_text(spec: Any) -> Any:
    """The server keeps `cpu: 1` as it was written; the models read it as the text `1`."""
    if isinstance(spec, dict):
        return {k: str(v) if k in ("cpu", "memory") and isinstance(v, int) else _quantities_as_text(v) for k, v in spec.items()}
    return spec

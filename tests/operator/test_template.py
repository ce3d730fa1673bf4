from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_operator.template import Refused, merged

BUILT: dict[str, Any] = {
    "metadata": {"labels": {"tidemill.dev/job": "j"}},
    "spec": {
        "serviceAccountName": "j-cell",
        "automountServiceAccountToken": False,
        "restartPolicy": "Always",
        "containers": [
            {
                "name": "cell",
                "image": "cell:1",
                "command": ["python"],
                "env": [{"name": "HOME", "value": "/tmp"}],
                "volumeMounts": [{"name": "work", "mountPath": "/work"}],
            }
        ],
        "initContainers": [{"name": "model", "command": ["python"]}],
        "volumes": [{"name": "work", "emptyDir": {}}],
    },
}


def result(spec: dict[str, Any]) -> dict[str, Any]:
    return merged(BUILT, {"spec": spec}, "spec.cells.template")["spec"]


def test_lists_merge_by_name_and_everything_else_is_added() -> None:
    spec = result(
        {
            "nodeSelector": {"gpu": "h200"},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "cell", "image": "mine:2", "env": [{"name": "MORE", "value": "1"}]}, {"name": "sidecar", "image": "s"}],
            "volumes": [{"name": "host", "hostPath": {"path": "/usr"}}],
        }
    )
    cell, sidecar = spec["containers"]
    assert (cell["image"], cell["command"], [e["name"] for e in cell["env"]]) == ("mine:2", ["python"], ["HOME", "MORE"])
    assert sidecar["name"] == "sidecar"
    assert [v["name"] for v in spec["volumes"]] == ["work", "host"]
    assert spec["nodeSelector"] == {"gpu": "h200"}


@pytest.mark.parametrize(
    ("fragment", "field"),
    [
        ({"spec": {"containers": [{"name": "cell", "command": ["sh"]}]}}, "spec.containers[cell].command"),
        ({"spec": {"containers": [{"name": "cell", "args": ["--more"]}]}}, "spec.containers[cell].args"),
        ({"spec": {"containers": [{"name": "cell", "$patch": "delete"}]}}, "spec.containers[cell]"),
        ({"spec": {"containers": None}}, "spec.containers[cell]"),
        ({"spec": {"containers": [{"name": "cell", "env": [{"name": "HOME", "value": "/root"}]}]}}, "spec.containers[cell].env[HOME]"),
        ({"spec": {"containers": [{"name": "cell", "volumeMounts": [{"mountPath": "/work", "name": "x"}]}]}}, "volumeMounts[/work]"),
        ({"spec": {"volumes": [{"name": "work", "hostPath": {"path": "/"}}]}}, "spec.volumes[work]"),
        ({"spec": {"initContainers": [{"name": "model", "command": ["true"]}]}}, "spec.initContainers[model].command"),
        ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName"),
        ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
        ({"metadata": {"labels": {"tidemill.dev/job": "other"}}}, "metadata.labels.tidemill.dev/job"),
        ({"spec": {"containers": "cell"}}, "is not of a pod template's shape"),
        ({"spec": {"containers": [{"image": "x"}]}}, "is not of a pod template's shape"),
        ({"spec": []}, "is not of a pod template's shape"),
        ({"containers": []}, "containers: unknown field"),
    ],
)
def test_what_the_product_needs_may_not_be_taken_away_and_the_field_is_named(fragment: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused, match=r"^spec\.cells\.template") as refusal:
        merged(BUILT, fragment, "spec.cells.template")
    assert field in str(refusal.value)


def test_an_empty_template_changes_nothing() -> None:
    assert merged(BUILT, {}, "x") == BUILT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "spec", "containers", "env", "volumes", "command"]), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["spec", "metadata", "other"]), JSON))
def test_any_fragment_is_merged_or_refused_and_never_breaks_the_operator(fragment: dict[str, Any]) -> None:
    try:
        spec = merged(BUILT, fragment, "x")["spec"]
    except Refused:
        return
    assert spec["serviceAccountName"] == "j-cell"
    assert next(c for c in spec["containers"] if c["name"] == "cell")["command"] == ["python"]

"""What a sandbox's pod is, and what its job may change of it."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill_rollout.sandbox.manifest import Errand, Owner, PodSettings, harness_pod, pod_name
from tidemill_rollout.sandbox.template import SandboxRefused

SETTINGS = PodSettings("ns", "small", "product:1", "http://10.0.0.7:7001", image_pull_secrets=("registry",))


def errand(component: Literal["sandbox", "evaluator"] = "sandbox", **changes: Any) -> Errand:
    return Errand(component, "g1-0", 2, "run", "g1-0", "key", 60.0, **changes)


def pod(template: dict[str, Any] | None = None, component: Literal["sandbox", "evaluator"] = "sandbox", **changes: Any) -> dict[str, Any]:
    return harness_pod(msgspec.structs.replace(SETTINGS, template=template or {}), Owner("small-conductor-0", "uid"), errand(component, **changes))


def test_a_pod_has_nothing_of_the_cluster_and_no_rights() -> None:
    made = pod()
    spec = made["spec"]
    assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "small-conductor-0", "uid": "uid"}]
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == ("Never", False, False)
    assert spec["activeDeadlineSeconds"] == 300 + 60 + 120
    assert (spec["dnsPolicy"], spec["hostname"]) == ("None", "sandbox")
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["containers"], *spec["initContainers"]):
        context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
        assert container["securityContext"] == context
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["resources"]["limits"] == {"cpu": "500m", "memory": "512Mi", "ephemeral-storage": "2Gi"}
    assert all(volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"])
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_what_runs_the_command_and_the_tests_are_shown_read_only() -> None:
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in pod(component="evaluator")["spec"]["containers"][0]["volumeMounts"]}
    assert mounts == {"/app": False, "/logs": False, "/tmp": False, "/run/tidemill": True, "/run/harness": True, "/tests": True}
    assert "/tests" not in {mount["mountPath"] for mount in pod()["spec"]["containers"][0]["volumeMounts"]}


def test_the_tasks_image_runs_the_work_and_the_products_image_fetches_it() -> None:
    spec = pod(image="task:1", seeded=True)["spec"]
    assert [(container["name"], container["image"]) for container in spec["initContainers"]] == [("prepare", "product:1"), ("seed", "task:1")]
    assert spec["containers"][0]["image"] == "task:1"
    assert [container["name"] for container in pod(image="harness:1")["spec"]["initContainers"]] == ["prepare"]
    assert pod()["spec"]["containers"][0]["image"] == "product:1"
    seed = spec["initContainers"][1]
    assert seed["env"] == [], "a task's image gets no key before its turn"


@given(st.text(min_size=1, max_size=60), st.integers(1, 999))
def test_names_are_what_kubernetes_takes_and_differ_where_attempts_do(execution: str, attempt: int) -> None:
    def name(component: Literal["sandbox", "evaluator"], attempt: int) -> str:
        return pod_name("a-job-with-a-name-of-fifty-two-characters-at-the-most", Errand(component, execution, attempt, "", "", "", 0.0))

    names = {name("sandbox", attempt), name("sandbox", attempt + 1), name("evaluator", attempt)}
    assert len(names) == 3
    for made in names:
        assert len(made) <= 63
        assert made.replace("-", "a").isalnum()
        assert made.isascii()
        assert made == made.lower().strip("-")


def test_a_template_adds_what_a_cluster_needs() -> None:
    template = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}},
        "spec": {
            "nodeSelector": {"pool": "cpu"},
            "priorityClassName": "low",
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "containers": [
                {"name": "sandbox", "env": [{"name": "A", "value": "b"}], "volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                {"name": "sidecar", "image": "log"},
            ],
        },
    }
    made = pod(template)
    before, after = pod()["spec"]["containers"][0], made["spec"]["containers"][0]
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["metadata"]["labels"]["tidemill.dev/job"] == "small"
    assert made["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert after["env"] == [*before["env"], {"name": "A", "value": "b"}]
    assert after["volumeMounts"] == [*before["volumeMounts"], {"name": "data", "mountPath": "/data"}]
    assert made["spec"]["containers"][1]["securityContext"] == before["securityContext"], "a sidecar is confined as well"
    json.dumps(made)


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"status": {}}, "status: unknown field"),
        ({"spec": []}, "spec: must be a mapping"),
        ({"spec": {"containers": {}}}, "spec.containers: must be a list"),
        ({"metadata": {"labels": {"tidemill.dev/job": "x"}}}, "metadata.labels: tidemill.dev/job"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"metadata": {"ownerReferences": None}}, "metadata.ownerReferences"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy: is fixed to 'Never'"),
        ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
        ({"spec": {"enableServiceLinks": None}}, "spec.enableServiceLinks"),
        ({"spec": {"activeDeadlineSeconds": None}}, "spec.activeDeadlineSeconds"),
        ({"spec": {"serviceAccountName": "x"}}, "spec.serviceAccountName"),
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork: opens the sandbox"),
        ({"spec": {"hostPID": True}}, "spec.hostPID"),
        ({"spec": {"shareProcessNamespace": True}}, "spec.shareProcessNamespace"),
        ({"spec": {"securityContext": {"runAsNonRoot": False}}}, "spec.securityContext.runAsNonRoot"),
        ({"spec": {"securityContext": {"runAsUser": 0}}}, "spec.securityContext: a sandbox does not run as root"),
        ({"spec": {"securityContext": {"seccompProfile": None}}}, "spec.securityContext.seccompProfile"),
        ({"spec": {"volumes": [{"name": "app", "hostPath": {"path": "/"}, "emptyDir": None}]}}, "spec.volumes[app]"),
        ({"spec": {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}}, "spec.volumes[t].projected"),
        ({"spec": {"containers": None}}, "spec.containers"),
        ({"spec": {"containers": [{"name": "sandbox", "command": ["sh"]}]}}, "spec.containers[sandbox].command"),
        ({"spec": {"containers": [{"name": "sandbox", "env": [{"name": "TIDEMILL_SANDBOX_URL", "value": "x"}]}]}}, "spec.containers[sandbox].env"),
        ({"spec": {"containers": [{"name": "sandbox", "volumeMounts": [{"name": "tmp", "mountPath": "/app"}]}]}}, "volumeMounts[/app]"),
        ({"spec": {"containers": [{"name": "sandbox", "securityContext": {"readOnlyRootFilesystem": False}}]}}, "readOnlyRootFilesystem"),
        ({"spec": {"containers": [{"name": "sandbox", "securityContext": {"privileged": True}}]}}, "securityContext.privileged"),
        ({"spec": {"containers": [{"name": "x", "image": "x", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}]}}, "[x].securityContext"),
        ({"spec": {"initContainers": [{"name": "x", "image": "x", "securityContext": {"allowPrivilegeEscalation": True}}]}}, "initContainers[x]"),
        (
            {"spec": {"initContainers": [{"name": "x", "image": "x", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}]}},
            "seccompProfile",
        ),
        ({"spec": {"initContainers": [{"name": "x", "image": "x", "securityContext": {"runAsUser": 0}}]}}, "does not run as root"),
    ],
)
def test_a_template_that_opens_the_sandbox_is_refused_by_the_name_of_its_field(template: dict[str, Any], field: str) -> None:
    with pytest.raises(SandboxRefused) as refused:
        pod(template)
    assert str(refused.value).startswith("spec.sandbox.template.")
    assert field in str(refused.value)


def test_what_the_operator_writes_is_read() -> None:
    written = {
        "namespace": "ns",
        "job": "small",
        "image": "i",
        "imagePullPolicy": "Never",
        "imagePullSecrets": ["a"],
        "gatewayUrl": "http://10.0.0.1:7001",
        "template": {"spec": {"nodeSelector": {"a": "b"}}},
        "resources": {"cpu": "1", "memory": "1Gi"},
    }
    read = msgspec.json.decode(json.dumps(written), type=PodSettings)
    assert (read.gateway_url, read.image_pull_policy, read.resources.memory) == ("http://10.0.0.1:7001", "Never", "1Gi")

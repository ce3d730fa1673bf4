"""The chart's admission policy, by a real API server: what a conductor's service account may create and delete, whoever has taken it over."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.access import KubectlFailed
from tests.cluster.api_server import ApiServer
from tests.cluster.manifests.documents import changed, rljob
from tests.cluster.test_sandbox_pods import ACCOUNT, allow
from tests.helm.chart import Manifest, render, text_of
from tidemill_rollout.sandbox.manifest import Errand, PodSettings, harness_pod

KUBECONFIGS: dict[tuple[str, str], Path] = {}
KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def rendered(**values: bool) -> list[Manifest]:
    return [document for document in render({"sandboxPolicy": values} if values else None) if document["kind"] in KINDS]


def pod(namespace: str, component: Any = "sandbox", job: str = "small", name: str = "") -> dict[str, Any]:
    settings = PodSettings(namespace, job, "product", "http://10.0.0.1:7001")
    made = harness_pod(settings, None, Errand(component, "e-1", 1, "run", "e-1", "key", 60.0))
    return changed(made, {"metadata.name": name or made["metadata"]["name"]})


@pytest.fixture(scope="module")
def policed(api_server: ApiServer) -> Iterator[ApiServer]:
    policy = yaml.safe_dump_all(rendered())
    api_server.kubectl("apply", "--filename=-", input=policy)
    yield api_server
    api_server.kubectl("delete", "--filename=-", input=policy)


@pytest.fixture(scope="module")
def ours(policed: ApiServer) -> Iterator[str]:
    """A namespace with the job `small` and its conductor's account, where the policy is in force."""
    namespace = f"test-{secrets.token_hex(4)}"
    policed.make_namespace(namespace)
    allow(policed, namespace)
    policed.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged", "--overwrite")
    policed.kubectl("apply", "--filename=-", f"--namespace={namespace}", input=yaml.safe_dump(rljob("small")))
    wrong = pod(namespace, name="probe", job="nobody")
    deadline = time.monotonic() + 30
    while not refusal(policed, namespace, wrong):
        assert time.monotonic() < deadline, "the policy is never in force"
    yield namespace
    policed.delete_namespace(namespace)


def refusal(server: ApiServer, namespace: str, document: dict[str, Any], account: str = ACCOUNT) -> str:
    """Why the account may not create it; nothing is created."""
    return said(server, namespace, "create", "--dry-run=server", "--filename=-", input=json.dumps(document), account=account)


def said(server: ApiServer, namespace: str, *arguments: str, input: str | None = None, account: str = ACCOUNT) -> str:
    access = server.control_plane.access
    if (namespace, account) not in KUBECONFIGS:
        KUBECONFIGS[namespace, account] = server.kubeconfig_for(account, namespace)
    try:
        access.kubectl(*arguments, f"--namespace={namespace}", input=input, kubeconfig=KUBECONFIGS[namespace, account])
    except KubectlFailed as problem:
        return str(problem)
    return ""


def test_sandboxes_and_evaluators_are_admitted(policed: ApiServer, ours: str) -> None:
    for component in ("sandbox", "evaluator"):
        assert refusal(policed, ours, pod(ours, component)) == ""


ROOT_CONTEXT = {"runAsUser": 0, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"metadata.labels": {"tidemill.dev/job": "other", "tidemill.dev/component": "sandbox"}}, "pods of its own job only"),
        ({"metadata.labels": {}}, "pods of its own job only"),
        ({"metadata.labels": {"tidemill.dev/job": "small", "tidemill.dev/component": "cell"}}, "sandboxes and evaluators only"),
        ({"spec.automountServiceAccountToken": True}, "no service account"),
        ({"spec.serviceAccountName": ACCOUNT}, "no service account"),
        ({"spec.hostNetwork": True}, "no namespace with its node"),
        ({"spec.hostPID": True}, "no namespace with its node"),
        ({"spec.hostIPC": True}, "no namespace with its node"),
        ({"spec.volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "nothing of its node's disk"),
        ({"spec.volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, "sees no secret"),
        ({"spec.volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}, "no token, certificate or secret"),
        ({"spec.securityContext": {}}, "does not run as root"),
        ({"spec.securityContext.runAsUser": 0}, "does not run as root"),
    ],
)
def test_a_pod_that_reaches_beyond_a_sandbox_is_refused(policed: ApiServer, ours: str, changes: dict[str, Any], complaint: str) -> None:
    document = changed(pod(ours), changes)
    if "spec.volumes" in changes:
        document["spec"]["volumes"] += pod(ours)["spec"]["volumes"]
    assert complaint in refusal(policed, ours, document)


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"securityContext": {"privileged": True}}, "no privileges"),
        ({"securityContext": {"capabilities": {"drop": ["ALL"]}}}, "no privileges"),
        ({"securityContext": {"allowPrivilegeEscalation": False}}, "no privileges"),
        ({"securityContext": ROOT_CONTEXT}, "does not run as root"),
        ({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, "sees no secret"),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, "sees no secret"),
    ],
)
def test_every_container_is_looked_at(policed: ApiServer, ours: str, kind: str, changes: dict[str, Any], complaint: str) -> None:
    document = pod(ours)
    added = {"name": "added", "image": "x", "securityContext": document["spec"]["containers"][0]["securityContext"], **changes}
    document["spec"][kind] = [*document["spec"][kind], added]
    assert complaint in refusal(policed, ours, document)


def test_a_conductor_deletes_its_own_sandboxes_only(policed: ApiServer, ours: str) -> None:
    for document in (pod(ours), pod(ours, job="other"), changed(pod(ours, name="cell"), {"metadata.labels": {"tidemill.dev/job": "small"}})):
        policed.kubectl("create", "--filename=-", input=json.dumps(document))
    assert "pods of its own job only" in said(policed, ours, "delete", "pod", "other-e-1-1")
    assert "sandboxes and evaluators only" in said(policed, ours, "delete", "pod", "cell")
    assert said(policed, ours, "delete", "pod", "small-e-1-1", "--wait=false") == ""


def test_others_are_not_confined(policed: ApiServer, ours: str) -> None:
    policed.kubectl("create", "serviceaccount", "train-conductor", f"--namespace={ours}")
    policed.kubectl("create", "rolebinding", "train", "--clusterrole=edit", f"--serviceaccount={ours}:train-conductor", f"--namespace={ours}")
    document = changed(pod(ours), {"metadata.labels": {}, "spec.hostNetwork": True})
    assert refusal(policed, ours, document, "train-conductor") == "", "an account of that name without a job"
    policed.kubectl("create", "--dry-run=server", "--filename=-", input=json.dumps(document))


def test_values_open_what_a_cluster_wants_open() -> None:
    assert "hostPath" in text_of(rendered())
    assert "hostPath" not in text_of(rendered(hostPath=True))
    assert "secretRef" not in text_of(rendered(secrets=True))
    assert rendered(enabled=False) == []
    assert not [document for document in render({"singleNamespace": True}) if document["kind"] in KINDS]

"""The chart on a real API server: accepted whatever the values, and neither an upgrade nor an uninstall touches a job."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.cluster.access import KubectlFailed
from tests.cluster.api_server import ApiServer
from tests.helm.chart import CHART, EXTERNAL_GROUPS, MATRIX, ROOT, HelmFailed, Manifest, context_of, helm, only, render, text_of
from tidemill.api import load_rljob
from tidemill_operator import access
from tidemill_operator.resources import CACHED, RESOURCES

JOB = """
apiVersion: tidemill.dev/v1alpha1
kind: RLJob
metadata: {name: kept}
spec:
  model: {source: "tiny:qwen3", maxLength: 2048}
  cells: {count: 3, capacity: 8}
  schedule: {groupsPerStep: 2, rolloutsPerGroup: 4, steps: 12}
  sampling: {maxTokens: 256}
  tasks: {source: "path:/tasks"}
"""
WITHOUT_CRDS: Manifest = {"crds": {"install": False}}


@pytest.fixture
def installed(api_server: ApiServer, namespace: str) -> Iterator[str]:
    """A release of the namespace's name, in that namespace."""
    helm("install", namespace, str(CHART), f"--namespace={namespace}", values=WITHOUT_CRDS, kubeconfig=api_server.kubeconfig)
    yield namespace
    if helm("list", f"--namespace={namespace}", "--short", kubeconfig=api_server.kubeconfig).strip():
        helm("uninstall", namespace, f"--namespace={namespace}", kubeconfig=api_server.kubeconfig)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_the_api_server_accepts_what_every_choice_of_values_renders(api_server: ApiServer, namespace: str, values: Manifest) -> None:
    manifests = [m for m in render(values, namespace, namespace) if m["apiVersion"] not in EXTERNAL_GROUPS]
    accounts = [m for m in manifests if m["kind"] == "ServiceAccount"]
    if accounts:  # for real, because the test's pod is not admitted without
        api_server.kubectl("apply", "-f", "-", input=text_of(accounts))
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
    assert len(api_server.kubectl(*apply, input=text_of(manifests)).splitlines()) == len(manifests)


def test_a_namespace_that_admits_restricted_pods_alone_admits_the_operator(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    manifests = render(None, namespace, namespace)
    template = only(manifests, "Deployment")["spec"]["template"]
    metadata = {"name": "operator", "namespace": namespace, "labels": template["metadata"]["labels"]}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, only(manifests, "Pod")]
    account = only(manifests, "ServiceAccount")
    api_server.kubectl("apply", "-f", "-", input=text_of([account]))
    assert len(api_server.kubectl("create", "--dry-run=server", "-f", "-", input=text_of(pods)).splitlines()) == 2
    pods[0]["spec"]["hostNetwork"] = True
    with pytest.raises(KubectlFailed, match='violates PodSecurity "restricted'):
        api_server.kubectl("create", "--dry-run=server", "-f", "-", input=text_of(pods[:1]))


def test_an_upgrade_and_an_uninstall_leave_jobs_and_definitions_alone(api_server: ApiServer, namespace: str) -> None:
    def release(action: str, values: Manifest | None = None, *options: str) -> None:
        chart = [str(CHART)] if action != "uninstall" else []
        helm(action, namespace, *chart, f"--namespace={namespace}", *options, values=values, kubeconfig=api_server.kubeconfig)

    def identity(kind: str, name: str) -> tuple[str, int]:
        metadata = api_server.get(kind, name, f"--namespace={namespace}")["metadata"]
        return metadata["uid"], metadata["generation"]

    release("install", None, "--take-ownership", "--force-conflicts")  # the definitions are there already: another test put them there by hand
    api_server.kubectl("apply", f"--namespace={namespace}", "-f", "-", input=JOB)
    before = identity("rljob", "kept"), identity("crd", "rljobs.tidemill.dev"), identity("crd", "gpucells.tidemill.dev")

    release("upgrade", {"nodeLossSeconds": 90, "replicas": 3})
    assert api_server.get("deployment", f"{namespace}-operator", f"--namespace={namespace}")["spec"]["replicas"] == 3
    assert before == (identity("rljob", "kept"), identity("crd", "rljobs.tidemill.dev"), identity("crd", "gpucells.tidemill.dev"))

    release("uninstall")
    assert not api_server.get("deployments", f"--namespace={namespace}")["items"]
    assert before == (identity("rljob", "kept"), identity("crd", "rljobs.tidemill.dev"), identity("crd", "gpucells.tidemill.dev"))

    release("install", None)  # the same release again takes its definitions back without being told
    assert before[0] == identity("rljob", "kept")
    release("uninstall")


def test_definitions_of_another_release_are_not_taken_silently(api_server: ApiServer, namespace: str) -> None:
    with pytest.raises(HelmFailed, match="cannot be imported into the current release"):
        helm("install", f"{namespace}-b", str(CHART), f"--namespace={namespace}", kubeconfig=api_server.kubeconfig)


def as_operator(api_server: ApiServer, release: str, *arguments: str, input: str | None = None) -> str:
    kubeconfig = api_server.kubeconfig_for(f"{release}-operator", release)
    return api_server.control_plane.access.kubectl(*arguments, input=input, kubeconfig=kubeconfig)


def test_the_operator_can_grant_the_conductor_its_rights_and_nothing_more(api_server: ApiServer, installed: str) -> None:
    apply = ("apply", "--server-side", "--dry-run=server", "-f", "-")
    wanted = access.role(context_of(load_rljob(ROOT / "examples/kubernetes/quickstart.yaml"), installed))
    as_operator(api_server, installed, *apply, input=text_of([wanted]))
    for resource, verb in (("secrets", "get"), ("pods/exec", "create"), ("nodes", "delete")):
        more = {**wanted, "rules": [*wanted["rules"], {"apiGroups": [""], "resources": [resource], "verbs": [verb]}]}
        with pytest.raises(KubectlFailed, match="attempting to grant RBAC permissions not currently held"):
            as_operator(api_server, installed, *apply, input=text_of([more]))


def review(verb: str, what: str) -> Manifest:
    """The question whether somebody may do it: `what` is /a/path, or plural.group, with /subresource behind the plural."""
    if what.startswith("/"):
        return {"nonResourceAttributes": {"verb": verb, "path": what}}
    resource, _, group = what.partition(".")
    plural, _, subresource = resource.partition("/")
    return {"resourceAttributes": {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": "default"}}


def refused(api_server: ApiServer, release: str, asked: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Which of these the operator of the release may not do in another namespace than its own."""
    user = f"system:serviceaccount:{release}:{release}-operator"
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    reviews = [{**kind, "spec": {"user": user, "groups": ["system:authenticated"], **review(*question)}} for question in asked]
    verdicts = api_server.kubectl("create", "-f", "-", "--output=jsonpath={.status.allowed} ", input=text_of(reviews)).split()
    assert len(verdicts) == len(asked)
    return [question for question, verdict in zip(asked, verdicts, strict=True) if verdict != "true"]


def test_the_operator_may_do_in_any_namespace_what_its_code_does(api_server: ApiServer, installed: str) -> None:
    names = {r.kind: f"{r.plural}.{r.group}".rstrip(".") for r in RESOURCES.values()}
    asked = [(verb, names[r.kind]) for r in CACHED for verb in ("list", *(["watch"] if r.watched else []))]
    asked += [(verb, names[kind]) for kind in {*names} - {"RLJob", "Node", "Lease"} for verb in ("create", "patch")]
    asked += [("delete", names[kind]) for kind in ("Pod", "GPUCell", "RLJob")]
    asked += [("patch", f"{kind}/status.tidemill.dev") for kind in ("rljobs", "gpucells")]
    asked += [("get", path) for path in ("/openid/v1/jwks", "/.well-known/openid-configuration")]
    assert refused(api_server, installed, asked) == []


def test_the_operator_may_not_do_what_its_code_does_not(api_server: ApiServer, installed: str) -> None:
    asked = [("create", "rljobs.tidemill.dev"), ("patch", "rljobs.tidemill.dev"), ("get", "secrets"), ("create", "pods/exec"), ("delete", "nodes")]
    asked += [
        ("patch", "nodes"),
        ("delete", "services"),
        ("create", "serviceaccounts/token"),
        ("get", "leases.coordination.k8s.io"),
        ("get", "/metrics"),
    ]
    asked += [("create", f"{kind}.rbac.authorization.k8s.io") for kind in ("clusterroles", "clusterrolebindings")]
    assert refused(api_server, installed, asked) == asked


def test_one_namespace_is_all_that_a_single_namespace_install_can_touch(api_server: ApiServer, namespace: str) -> None:
    values = {**WITHOUT_CRDS, "singleNamespace": True}
    helm("install", namespace, str(CHART), f"--namespace={namespace}", values=values, kubeconfig=api_server.kubeconfig)
    assert as_operator(api_server, namespace, "get", "rljobs", f"--namespace={namespace}", "--output=name") == ""
    assert as_operator(api_server, namespace, "get", "nodes", "--output=name") == ""
    for elsewhere in (("get", "rljobs", "--namespace=default"), ("get", "pods", "--all-namespaces"), ("get", "namespaces")):
        with pytest.raises(KubectlFailed, match="forbidden"):
            as_operator(api_server, namespace, *elsewhere)
    helm("uninstall", namespace, f"--namespace={namespace}", kubeconfig=api_server.kubeconfig)


def test_who_may_edit_may_edit_jobs_and_who_may_view_may_view_them(api_server: ApiServer, installed: str) -> None:
    rights = {"edit": [("create", "rljobs"), ("patch", "gpucells")], "view": [("list", "rljobs"), ("watch", "gpucells")]}
    for kind, allowed in rights.items():
        api_server.kubectl("create", "serviceaccount", kind, f"--namespace={installed}")
        api_server.kubectl("create", "rolebinding", kind, f"--clusterrole={kind}", f"--serviceaccount={installed}:{kind}", f"--namespace={installed}")
        user = [f"--as=system:serviceaccount:{installed}:{kind}", f"--namespace={installed}"]
        for verb, resource in allowed:
            assert api_server.kubectl("auth", "can-i", verb, f"{resource}.tidemill.dev", *user).strip() == "yes"
    viewer = [f"--as=system:serviceaccount:{installed}:view", f"--namespace={installed}"]
    for verb, resource in (("create", "rljobs"), ("patch", "gpucells"), ("delete", "rljobs")):
        with pytest.raises(KubectlFailed):
            api_server.kubectl("auth", "can-i", verb, f"{resource}.tidemill.dev", *viewer)


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_charts_own_test_passes_when_an_operator_answers(api_server: ApiServer, installed: str, tmp_path: Path) -> None:
    container = only(render(None, installed, installed), "Pod")["spec"]["containers"][0]
    account = f"{installed}-operator"
    (tmp_path / "ca.crt").write_bytes(api_server.control_plane.access.trust.read_bytes())
    (tmp_path / "token").write_text(api_server.token_for(account, installed))
    program = container["args"][0].replace("/var/run/secrets/kubernetes.io/serviceaccount", str(tmp_path))
    server, service = urlsplit(api_server.url), account.upper().replace("-", "_")
    environment = {
        "KUBERNETES_SERVICE_HOST": str(server.hostname),
        "KUBERNETES_SERVICE_PORT": str(server.port),
        f"{service}_SERVICE_HOST": "127.0.0.1",
    }

    def run(port: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env={**environment, f"{service}_SERVICE_PORT_HEALTH": str(port)}
        )

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as operator:
        threading.Thread(target=operator.serve_forever, daemon=True).start()
        done = run(operator.server_port)
        operator.shutdown()
        port = operator.server_port
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["custom resource definitions: served", "operator: 200"]
    assert run(port).returncode != 0, "it must fail when no operator listens"


def test_the_networks_that_a_cluster_provides_for_profiles_are_valid(api_server: ApiServer, namespace: str) -> None:
    """Claim templates of dynamic resource allocation for real; the other kinds are add-ons' own."""
    documents = [d for d in yaml.safe_load_all((ROOT / "examples/kubernetes/networks/dra.yaml").read_text()) if d]
    templates = [d for d in documents if d["kind"] == "ResourceClaimTemplate"]
    assert templates
    api_server.kubectl("apply", f"--namespace={namespace}", "-f", "-", input=text_of(templates))
    wanted = yaml.safe_load((CHART / "values.yaml").read_text())["networkProfiles"]["dra"]["claims"]
    there = {t["metadata"]["name"] for t in api_server.get("resourceclaimtemplates", f"--namespace={namespace}")["items"]}
    assert {claim["resourceClaimTemplateName"] for claim in wanted} <= there

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, IMAGES, MATRIX, ROOT, HelmFailed, Manifest, helm, only, pod_specs, render
from tests.prometheus import program
from tests.tidemill.telemetry.exported import OPENMETRICS, series
from tidemill_operator import metrics
from tidemill_operator.config import OperatorConfig, load_config

EACH_OF_THE_MATRIX = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)


def config_of(manifests: list[Manifest], folder: Path) -> OperatorConfig:
    text = next(m for m in manifests if m["kind"] == "ConfigMap")["data"]["operator.yaml"]
    (folder / "operator.yaml").write_text(text)
    return load_config(folder / "operator.yaml")


def rules_of(manifests: list[Manifest]) -> list[tuple[Manifest, Manifest]]:
    return [(m, rule) for m in manifests if m["kind"] in ("Role", "ClusterRole") for rule in m["rules"]]


def test_helm_has_nothing_to_say_against_it() -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@EACH_OF_THE_MATRIX
def test_the_operator_understands_the_configuration_that_every_choice_of_values_writes(values: Manifest, tmp_path: Path) -> None:
    config = config_of(render(values), tmp_path)
    assert config.operator_namespace == "tidemill-system"
    assert config.development is values.get("development", False)
    assert config.node_loss_seconds == values.get("nodeLossSeconds", 60)
    assert config.image_pull_secrets == tuple(values.get("imagePullSecrets", ()))


@EACH_OF_THE_MATRIX
def test_no_right_is_a_wildcard(values: Manifest) -> None:
    for role, rule in rules_of(render(values)):
        for field in ("apiGroups", "resources", "verbs", "nonResourceURLs"):
            assert not any("*" in word for word in rule.get(field, [])), f"{role['metadata']['name']}: {rule}"
        assert not {"bind", "escalate", "impersonate"} & set(rule["verbs"]), rule
        assert not {"secrets", "pods/exec"} & set(rule.get("resources", [])), rule


@EACH_OF_THE_MATRIX
def test_every_pod_is_unprivileged_whatever_the_values(values: Manifest) -> None:
    specs = pod_specs(render(values))
    assert len(specs) == 2  # operator and test
    for spec in specs:
        assert spec["securityContext"] | {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} == spec["securityContext"]
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert not any(v.get("hostPath") for v in spec.get("volumes", []))


def test_the_definitions_are_those_of_the_models_and_stay_when_the_chart_goes() -> None:
    rendered = {m["metadata"]["name"]: m for m in render() if m["kind"] == "CustomResourceDefinition"}
    files = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]
    assert {f["metadata"]["name"] for f in files} == set(rendered) == {"rljobs.tidemill.dev", "gpucells.tidemill.dev"}
    for file in files:
        assert rendered[file["metadata"]["name"]]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert rendered[file["metadata"]["name"]]["spec"] == file["spec"]
    assert not [m for m in render({"crds": {"install": False}}) if m["kind"] == "CustomResourceDefinition"]


def test_a_package_of_the_chart_installs_the_same(tmp_path: Path) -> None:
    """files/crds is a link to the repository's crds: a package must hold the files themselves."""
    helm("package", str(CHART), f"--destination={tmp_path}")
    (package,) = tmp_path.iterdir()
    assert [*yaml.safe_load_all(helm("template", "tidemill", str(package), "--namespace=tidemill-system"))] == [
        *yaml.safe_load_all(helm("template", "tidemill", str(CHART), "--namespace=tidemill-system"))
    ]


def test_one_namespace_needs_no_right_in_the_cluster_but_to_read_what_belongs_to_no_namespace() -> None:
    manifests = render({"singleNamespace": True})
    rules = [rule for role, rule in rules_of(manifests) if role["kind"] == "ClusterRole"]
    assert {r for rule in rules for r in rule.get("resources", ())} == {"nodes"}
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert {m["metadata"]["namespace"] for m in manifests if m["kind"] == "Role"} == {"tidemill-system"}


def test_chosen_namespaces_get_a_role_each_and_the_cluster_role_only_reads(tmp_path: Path) -> None:
    manifests = render({"namespaces": ["red", "blue"], "rbac": {"aggregate": False}})
    assert config_of(manifests, tmp_path).namespaces == ("red", "blue")
    assert {m["metadata"]["namespace"] for m in manifests if m["kind"] == "RoleBinding"} == {"red", "blue", "tidemill-system"}
    in_cluster = {verb for role, rule in rules_of(manifests) if role["kind"] == "ClusterRole" for verb in rule["verbs"]}
    assert in_cluster == {"get", "list", "watch"}


def test_the_roles_of_the_configured_account_are_bound_to_it(tmp_path: Path) -> None:
    manifests = render({"serviceAccount": {"name": "miller"}})
    assert config_of(manifests, tmp_path).operator_service_account == "miller"
    assert only(manifests, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "miller"
    subjects = {(s["name"], s["namespace"]) for m in manifests if m["kind"].endswith("RoleBinding") for s in m["subjects"]}
    assert subjects == {("miller", "tidemill-system")}


def test_the_lease_that_may_be_renewed_is_the_one_that_is_configured(tmp_path: Path) -> None:
    manifests = render({"nameOverride": "mill"})
    rule = next(r for _, r in rules_of(manifests) if r.get("resources") == ["leases"] and "resourceNames" in r)
    assert rule["resourceNames"] == [config_of(manifests, tmp_path).lease.name] == ["mill"]


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "tidemill/conductor:0.1.0"),
        ({"imageRegistry": "r.example.com:5000/ml/"}, "r.example.com:5000/ml/tidemill/conductor:0.1.0"),
        ({"images": {"conductor": "c:7"}}, "c:7"),
        ({"images": {"conductor": "r.example.com:5000/c"}}, "r.example.com:5000/c:0.1.0"),
        ({"images": {"conductor": f"c@sha256:{'a' * 64}"}}, f"c@sha256:{'a' * 64}"),
    ],
)
def test_an_image_is_found_where_the_values_say(values: Manifest, image: str, tmp_path: Path) -> None:
    assert config_of(render(values), tmp_path).images.conductor == image


def test_a_change_of_the_configuration_restarts_the_operators() -> None:
    def template(values: Manifest) -> Any:
        return only(render(values), "Deployment")["spec"]["template"]["metadata"]["annotations"]

    assert template({}) == template({"replicas": 3})
    assert template({}) != template({"nodeLossSeconds": 61})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": "two"}, "/replicas"),
        ({"crds": {"instal": True}}, "instal"),
        ({"imagePullPolicy": "Sometimes"}, "/imagePullPolicy"),
        ({"images": {"gateway": "x"}}, "gateway"),
        ({"images": {"cell": "a b"}}, "/images/cell"),
        ({"networkProfiles": {"infiniband": {}}}, "infiniband"),
        ({"networkProfiles": {"efa": {"resource": {"a": "1"}}}}, "resource"),
        ({"networkProfiles": {"dra": {"claims": [{"name": "rdma"}]}}}, "/networkProfiles/dra/claims/0"),
        ({"lease": {"durationSeconds": 0}}, "/lease/durationSeconds"),
        ({"namespaces": ["Red"]}, "/namespaces/0"),
        ({"podMonitor": {"interval": 30}}, "/podMonitor/interval"),
    ],
    ids=str,
)
def test_a_mistake_in_the_values_is_refused_and_named(values: Manifest, said: str) -> None:
    with pytest.raises(HelmFailed, match=re.escape(said)):
        render(values)


def test_every_value_is_explained() -> None:
    """By a comment above it, above its neighbours, or above each of its fields."""
    blocks = re.split(r"\n\s*\n", (CHART / "values.yaml").read_text())
    silent = [block for block in blocks if not any(line.lstrip().startswith("#") for line in block.splitlines()[:2])]
    assert not silent


def test_the_schema_knows_the_values_and_nothing_else() -> None:
    def compare(schema: Manifest, values: Manifest, path: str) -> None:
        assert schema["additionalProperties"] is False, path
        assert set(schema["properties"]) - {"global"} >= set(values), path
        for name, below in schema["properties"].items():
            if below.get("properties") and values.get(name):
                compare(below, values[name], f"{path}.{name}")

    schema, values = json.loads((CHART / "values.schema.json").read_text()), yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    compare(schema, values, "")


def test_every_image_of_a_job_can_be_chosen() -> None:
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())["images"]) == {"operator", *IMAGES}


def test_the_notes_end_with_what_to_type() -> None:
    notes = helm("install", "tidemill", str(CHART), "--namespace=mill", "--dry-run=client").split("NOTES:")[1]
    assert "kubectl --namespace mill rollout status deployment/tidemill-operator" in notes
    applied = re.findall(r"kubectl apply -f (\S+)", notes)
    assert applied
    assert all((ROOT / file).exists() for file in applied)


def test_prometheus_understands_the_alerts(tmp_path: Path) -> None:
    rule = only(render({"prometheusRule": {"enabled": True}}), "PrometheusRule")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run([program("promtool"), "check", "rules", str(tmp_path / "rules.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_ask_for_nothing_that_the_operator_does_not_measure() -> None:
    rule = only(render({"prometheusRule": {"enabled": True}}), "PrometheusRule")
    measured = {name for name, _ in series(metrics.REGISTRY.page(OPENMETRICS)[0].decode())}
    asked = {name for group in rule["spec"]["groups"] for r in group["rules"] for name in re.findall(r"tidemill_operator_\w+", r["expr"])}
    assert asked
    assert asked <= measured

"""The chart through the real Helm: rendered, installed, upgraded, removed."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.programs import programs
from tidemill.api.rljob import RLJob
from tidemill_operator.config import OperatorConfig
from tidemill_operator.pods import Context

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "tidemill"

type Manifest = dict[str, Any]

IMAGES = ("conductor", "cell", "sandbox")
EXTERNAL_GROUPS = ("monitoring.coreos.com/v1",)
"""Kinds of add-ons, which a bare API server does not serve."""

MATRIX: dict[str, Manifest] = {
    "as it comes": {},
    "one namespace": {"singleNamespace": True, "replicas": 1},
    "chosen namespaces": {"namespaces": ["default", "kube-public"]},
    "no definitions": {"crds": {"install": False}},
    "no rights": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "default"}},
    "no aggregation": {"rbac": {"aggregate": False}},
    "private registry": {
        "imageRegistry": "registry.example.com:5000/ml/",
        "imagePullSecrets": ["registry"],
        "imagePullPolicy": "Always",
        "images": {"operator": "tidemill/operator:1", "cell": f"cell@sha256:{'0' * 64}"},
    },
    "own names": {"nameOverride": "mill", "serviceAccount": {"name": "miller", "annotations": {"example.com/role": "mill"}}},
    "placement": {
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "rl"},
        "podAnnotations": {"example.com/note": "yes: quoted"},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}],
        "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}},
    },
    "monitored": {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "metricsFrom": ["monitoring"],
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True, "runbooks": "https://example.com/runbooks.md"},
        "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Tidemill"}},
    },
    "slower": {
        "lease": {"durationSeconds": 30, "renewSeconds": 20, "retrySeconds": 5},
        "nodeLossSeconds": 120.5,
        "placementSeconds": 600,
        "defaults": {"terminationGracePeriodSeconds": 120},
        "podDisruptionBudget": {"create": False},
    },
    "open sandboxes": {"sandboxPolicy": {"hostPath": True, "secrets": True}},
    "no policy": {"sandboxPolicy": {"enabled": False}},
    "other network": {"networkProfiles": {"efa": {"resources": {"vpc.amazonaws.com/efa": "32"}, "hostNetwork": True}}},
    "for tests": {"development": True, "imagePullPolicy": "Never"},
}


class HelmFailed(Exception):
    """Helm ended with an error; the text is what it said."""


def helm(*arguments: str, values: Manifest | None = None, kubeconfig: Path | None = None) -> str:
    """Run Helm and return what it wrote."""
    command = [programs(("helm",))["helm"], *arguments, *(["--values=-"] if values else [])]
    environment = os.environ | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {"KUBECONFIG": os.devnull})
    done = subprocess.run(command, input=yaml.safe_dump(values) if values else "", capture_output=True, text=True, env=environment)
    if done.returncode:
        raise HelmFailed(done.stderr.strip())
    return done.stdout


def render(values: Manifest | None = None, release: str = "tidemill", namespace: str = "tidemill-system") -> list[Manifest]:
    return [document for document in yaml.safe_load_all(_rendered(json.dumps(values), release, namespace)) if document]


@cache
def _rendered(values: str, release: str, namespace: str) -> str:
    return helm("template", release, str(CHART), f"--namespace={namespace}", values=json.loads(values))


def text_of(manifests: list[Manifest]) -> str:
    """For kubectl. As JSON, because YAML's writers and readers disagree about text that looks like a number."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})


def only(manifests: list[Manifest], kind: str, name: str = "") -> Manifest:
    """The one object of a kind."""
    found = [m for m in manifests if m["kind"] == kind and (not name or m["metadata"]["name"] == name)]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def pod_specs(manifests: list[Manifest]) -> list[Manifest]:
    return [m["spec"] if m["kind"] == "Pod" else m["spec"]["template"]["spec"] for m in manifests if m["kind"] in ("Pod", "Deployment")]


def context_of(job: RLJob, namespace: str) -> Context:
    """What the operator knows of a job that was installed with the values as they come."""
    written = yaml.safe_load(only(render(None), "ConfigMap")["data"]["operator.yaml"])
    config = OperatorConfig.model_validate_json(json.dumps(written))
    return Context(job, namespace, "00000000-0000-0000-0000-000000000000", config, conductor_ip="10.96.0.20", gateway_ips=("10.96.0.21",))

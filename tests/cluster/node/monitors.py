"""What the Prometheus operator makes of the chart's monitors: the scrape configurations of a Prometheus that finds pods and services by itself."""

from __future__ import annotations

import re
from typing import Any

type Manifest = dict[str, Any]

POD, SERVICE = "PodMonitor", "ServiceMonitor"
_ENDPOINTS = {POD: "podMetricsEndpoints", SERVICE: "endpoints"}
_UNDERSTOOD = {"port", "path", "interval", "honorLabels", "relabelings"}
_META = "__meta_kubernetes_"


def scrape_configs(manifests: list[Manifest]) -> list[Manifest]:
    """One for every endpoint of every monitor."""
    monitors = [manifest for manifest in manifests if manifest["kind"] in _ENDPOINTS]
    return [_scrape(monitor, endpoint, i) for monitor in monitors for i, endpoint in enumerate(monitor["spec"][_ENDPOINTS[monitor["kind"]]])]


def _scrape(monitor: Manifest, endpoint: Manifest, number: int) -> Manifest:
    assert set(endpoint) <= _UNDERSTOOD, f"{monitor['metadata']['name']}: what {set(endpoint) - _UNDERSTOOD} means is not known here"
    kind, meta = monitor["kind"], monitor["metadata"]
    return {
        "job_name": f"{kind}/{meta['namespace']}/{meta['name']}/{number}",
        "kubernetes_sd_configs": [{"role": "pod" if kind == POD else "endpointslice", **_namespaces(monitor)}],
        "relabel_configs": [*_selected(monitor, endpoint), *_labelled(monitor, endpoint), *map(_relabeling, endpoint.get("relabelings", []))],
        "metrics_path": endpoint.get("path", "/metrics"),
        "honor_labels": endpoint.get("honorLabels", False),
        "scrape_interval": endpoint["interval"],
    }


def _namespaces(monitor: Manifest) -> Manifest:
    chosen = monitor["spec"].get("namespaceSelector", {})
    return {} if chosen.get("any") else {"namespaces": {"names": chosen.get("matchNames", [monitor["metadata"]["namespace"]])}}


def _selected(monitor: Manifest, endpoint: Manifest) -> list[Manifest]:
    kind, selector = monitor["kind"], monitor["spec"]["selector"]
    whose, port = ("pod", "pod_container_port_name") if kind == POD else ("service", "endpointslice_port_name")
    wanted = [(key, re.escape(value)) for key, value in selector.get("matchLabels", {}).items()]
    for expression in selector.get("matchExpressions", []):
        values = {"Exists": [".*"], "In": [re.escape(value) for value in expression.get("values", [])]}[expression["operator"]]
        wanted.append((expression["key"], "|".join(values)))
    labels = [(_plain(key), values) for key, values in wanted]
    kept = [_keep(f"({values});true", f"{whose}_label_{label}", f"{whose}_labelpresent_{label}") for label, values in labels]
    over = {"source_labels": [f"{_META}pod_phase"], "regex": "(Failed|Succeeded)", "action": "drop"}
    return [over, *kept, _keep(endpoint["port"], port)]


def _labelled(monitor: Manifest, endpoint: Manifest) -> list[Manifest]:
    kind, meta = monitor["kind"], monitor["metadata"]
    found = {"namespace": "namespace", "pod": "pod_name", "container": "pod_container_name"}
    said = {"endpoint": endpoint["port"]}
    if kind == POD:
        said["job"] = f"{meta['namespace']}/{meta['name']}"
    else:
        found |= {"service": "service_name", "job": "service_name"}
    copied = [{"source_labels": [f"{_META}{source}"], "target_label": label} for label, source in found.items()]
    return [*copied, *({"target_label": label, "replacement": value} for label, value in said.items())]


def _keep(regex: str, *labels: str) -> Manifest:
    return {"source_labels": [f"{_META}{label}" for label in labels], "regex": regex, "action": "keep"}


def _relabeling(written: Manifest) -> Manifest:
    """Of a monitor, whose fields are in camel case."""
    return {re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name): value for name, value in written.items()}


def _plain(label: str) -> str:
    return re.sub(r"\W", "_", label)

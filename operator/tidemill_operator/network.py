"""Who may talk to whom, and how many pods a voluntary disruption may take."""

from __future__ import annotations

from tidemill_operator import cells, names
from tidemill_operator.names import CONFINED, Manifest
from tidemill_operator.pods import Context

TRUSTED = ("conductor", "gateway", "cell")


def policies(context: Context) -> tuple[Manifest, ...]:
    return (_sandboxes(context), _processes(context), _gateway(context))


def budgets(context: Context) -> tuple[Manifest, ...]:
    """One pod of each at a time, so that a drain of nodes takes cells one after the other. None may be zero: `kubectl drain` would never end."""
    one: Manifest = {"maxUnavailable": 1}
    # Cells' pods belong to GPUCells, which no disruption controller knows how to count: it takes only a number that must stay.
    all_but_one = {"minAvailable": max(0, sum(cell.nodes for cell in cells.wanted(context)) - 1)}
    return (
        _budget(context, names.conductor(context.name), "conductor", one),
        _budget(context, names.gateway(context.name), "gateway", one),
        _budget(context, f"{context.name}-cells", "cell", all_but_one),
    )


def _sandboxes(context: Context) -> Manifest:
    """Model-written commands reach the gateway, and nothing reaches them."""
    to_gateway = {"to": [{"podSelector": _pods(context, "gateway")}], "ports": [_port(names.GATEWAY_PORT)]}
    return _policy(context, "sandboxes", CONFINED, {"policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": [to_gateway]})


def _processes(context: Context) -> Manifest:
    """Conductor, gateway and cells hear each other, the operator, and who scrapes. What they call is open: the API server, registries, model hubs."""
    heard = (context.config.operator_namespace, *context.config.metrics_from)
    outside = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}} for namespace in heard]
    peers = [{"podSelector": _pods(context, *TRUSTED)}, *outside]
    return _policy(context, "processes", TRUSTED, {"policyTypes": ["Ingress"], "ingress": [{"from": peers}]})


def _gateway(context: Context) -> Manifest:
    """Policies add up: this one also lets sandboxes in, on the one port."""
    rule = {"from": [{"podSelector": _pods(context, *CONFINED)}], "ports": [_port(names.GATEWAY_PORT)]}
    return _policy(context, "gateway", ("gateway",), {"policyTypes": ["Ingress"], "ingress": [rule]})


def _policy(context: Context, name: str, components: tuple[str, ...], rules: Manifest) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": context.meta(f"{context.name}-{name}", components[0]),
        "spec": {"podSelector": _pods(context, *components), **rules},
    }


def _budget(context: Context, name: str, component: str, bound: Manifest) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": context.meta(name, component),
        "spec": {"selector": _pods(context, component), "unhealthyPodEvictionPolicy": "AlwaysAllow", **bound},
    }


def _pods(context: Context, *components: str) -> Manifest:
    return {
        "matchLabels": {names.JOB: context.name},
        "matchExpressions": [{"key": names.COMPONENT, "operator": "In", "values": list(components)}],
    }


def _port(number: int) -> Manifest:
    return {"port": number, "protocol": "TCP"}

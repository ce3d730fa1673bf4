"""The kinds the operator reads and writes, and where the API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.api.model import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool = True
    ours: bool = True  # carries our labels
    watched: bool = False
    optional: bool = False  # not every cluster has it

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = (root, f"namespaces/{namespace}" if namespace else "", self.plural, name, subresource)
        return "/".join(part for part in parts if part)


RESOURCES = {
    resource.kind: resource
    for resource in (
        Resource("RLJob", GROUP, VERSION, "rljobs", ours=False, watched=True),
        Resource("GPUCell", GROUP, VERSION, "gpucells", watched=True),
        Resource("Pod", "", "v1", "pods", watched=True),
        Resource("StatefulSet", "apps", "v1", "statefulsets", watched=True),
        Resource("Service", "", "v1", "services", watched=True),
        Resource("Node", "", "v1", "nodes", namespaced=False, ours=False, watched=True),
        Resource("ConfigMap", "", "v1", "configmaps"),
        Resource("ServiceAccount", "", "v1", "serviceaccounts"),
        Resource("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
        Resource("Role", "rbac.authorization.k8s.io", "v1", "roles"),
        Resource("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings"),
        Resource("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies"),
        Resource("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets"),
        Resource("PodGroup", "scheduling.k8s.io", "v1beta1", "podgroups", optional=True),
        Resource("Lease", "coordination.k8s.io", "v1", "leases", ours=False),
        Resource("Event", "events.k8s.io", "v1", "events", ours=False),
    )
}
CACHED = tuple(r for r in RESOURCES.values() if r.kind not in ("Lease", "Event"))
"""Kept in the caches. Watched ones change there within milliseconds, the others with our own writes and at each sweep."""

"""Who a job's processes are, and what they may do at the API server: the conductor makes sandbox pods, nobody else does anything."""

from __future__ import annotations

from tidemill_operator import names
from tidemill_operator.names import Manifest
from tidemill_operator.pods import Context


def accounts(context: Context) -> tuple[Manifest, ...]:
    return tuple(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": context.meta(f"{context.name}-{component}", component),
            "automountServiceAccountToken": False,
        }
        for component in ("conductor", "gateway", "cell")
    )


def role(context: Context) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": context.meta(names.conductor(context.name), "conductor"),
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        ],
    }


def role_binding(context: Context) -> Manifest:
    name = names.conductor(context.name)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": context.meta(name, "conductor"),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": context.namespace}],
    }

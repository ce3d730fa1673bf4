"""trust.json: whose tokens a job's processes believe, checked with the cluster's public keys and without asking anybody."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidemill_operator.config import OperatorConfig
from tidemill_operator.kube import Kube
from tidemill_operator.names import Manifest
from tidemill_operator.pods import AUDIENCE


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    issuer: str
    keys: Manifest


async def fetch(kube: Kube) -> ClusterKeys:
    """Raises KubeError."""
    discovery = await kube.raw("/.well-known/openid-configuration")
    return ClusterKeys(discovery["issuer"], await kube.raw("/openid/v1/jwks"))


def trust(cluster: ClusterKeys | None, config: OperatorConfig, namespace: str, job: str) -> str:
    """Empty until the keys are known."""
    if cluster is None:
        return ""
    accounts = [f"{namespace}:{job}-{component}" for component in ("conductor", "gateway", "cell")]
    accounts.append(f"{config.operator_namespace}:{config.operator_service_account}")
    document = {
        "issuer": cluster.issuer,
        "audience": AUDIENCE,
        "subjects": [f"system:serviceaccount:{account}" for account in accounts],
        "keys": cluster.keys,
    }
    return json.dumps(document, indent=1, sort_keys=True)

"""Which cluster and namespace a command means, as kubectl decides it: options, then $KUBECONFIG, then ~/.kube/config, then the pod it runs in."""

from __future__ import annotations

import difflib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tidemill.cluster.api import Cluster
from tidemill.cluster.trouble import ClusterTrouble

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Place:
    """What the user said. Empty: nothing."""

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Cluster]:
    """Raises `ClusterTrouble` when there is nothing to connect to; whether the cluster answers shows with the first call."""
    try:
        from kubernetes.aio import config  # half a second, and not installed everywhere
        from kubernetes.aio.client import ApiClient, Configuration
    except ImportError as cause:
        raise ClusterTrouble("the package kubernetes is not installed; pip install 'tidemill[cluster]'") from cause
    configuration = Configuration()
    paths = found(place, os.environ)
    if paths:
        namespace = await _load(config, configuration, paths, place)
    elif os.environ.get("KUBERNETES_SERVICE_HOST") and not (place.kubeconfig or place.context):
        config.load_incluster_config(client_configuration=configuration)
        namespace = (IN_POD / "namespace").read_text().strip()
    else:
        raise ClusterTrouble(f"no kubeconfig: {sought(place, os.environ)} is not there; give --kubeconfig FILE or set KUBECONFIG")
    async with ApiClient(configuration) as client, aiohttp.ClientSession(trust_env=True) as session:
        yield Cluster(client, session, place.namespace or namespace or "default")


def found(place: Place, environment: Mapping[str, str]) -> str:
    """The files to read, as $KUBECONFIG joins them; "" when none exists."""
    return os.pathsep.join(p for p in sought(place, environment).split(os.pathsep) if p and Path(p).expanduser().exists())


def sought(place: Place, environment: Mapping[str, str]) -> str:
    return place.kubeconfig or environment.get("KUBECONFIG", "") or "~/.kube/config"


async def _load(config: Any, configuration: Any, paths: str, place: Place) -> str:
    """Fills `configuration`, and answers the namespace of the context."""
    try:
        loader = await config.load_kube_config(paths, place.context or None, configuration, persist_config=False)
    except config.ConfigException as cause:
        raise ClusterTrouble(_unusable(paths, place.context, str(cause))) from cause
    except (OSError, yaml.YAMLError, TypeError, AttributeError) as cause:  # what is no kubeconfig at all ends in any of these
        raise ClusterTrouble(f"{paths} is not a kubeconfig ({' '.join(str(cause).split())[:200]}); give another --kubeconfig") from cause
    return str(loader.current_context["context"].get("namespace") or "")


def _unusable(paths: str, context: str, reason: str) -> str:
    known = []
    for path in paths.split(os.pathsep):
        document = yaml.safe_load(Path(path).expanduser().read_text())
        known += [str(c.get("name")) for c in document.get("contexts") or ()] if isinstance(document, dict) else []
    if context and context not in known:
        near = difflib.get_close_matches(context, known, n=1)
        return f"{paths} has no context {context}; {f'did you mean {near[0]}?' if near else f'it has {", ".join(known) or "none"}'}"
    if not context and known:
        return f"{paths}: {reason}; give --context, one of {', '.join(known)}"
    return f"{paths} cannot be used: {reason}; give another --kubeconfig"

"""How tests reach a cluster: kubectl, clients, and the credentials of a service account."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient

from tests.cluster.certificates import Certificate


class KubectlFailed(Exception):
    """kubectl ended with an error; the text is what it said."""


@dataclass(frozen=True, slots=True)
class Access:
    url: str
    trust: Path  # the authority's certificate
    kubeconfig: Path  # of the administrator
    kubectl_program: str

    def kubectl(self, *arguments: str, input: str | None = None, kubeconfig: Path | None = None) -> str:
        """Run kubectl, as the administrator unless told otherwise, and return what it wrote."""
        command = [self.kubectl_program, f"--kubeconfig={kubeconfig or self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=input, capture_output=True, text=True)
        if done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """What `kubectl get` finds, as data."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    @asynccontextmanager
    async def client(self, kubeconfig: Path | None = None) -> AsyncIterator[ApiClient]:
        """A client of the `kubernetes` package, as the administrator unless told otherwise."""
        async with await config.new_client_from_config(str(kubeconfig or self.kubeconfig)) as client:
            yield client

    def token_for(self, service_account: str, namespace: str, audience: str = "") -> str:
        """A token of an existing service account, for the API server unless another audience is named."""
        chosen = [f"--audience={audience}"] if audience else []
        return self.kubectl("create", "token", service_account, f"--namespace={namespace}", *chosen).strip()

    def kubeconfig_for(self, service_account: str, namespace: str, url: str = "") -> Path:
        """A configuration with which a client is that service account; `url` where it shall go through a proxy."""
        url = url or self.url
        file = self.kubeconfig.parent / f"{namespace}-{service_account}@{urlsplit(url).port}"
        write_kubeconfig(file, url, self.trust, {"token": self.token_for(service_account, namespace)}, namespace)
        return file


def write_kubeconfig(file: Path, url: str, trust: Path, user: dict[str, str], namespace: str = "default") -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(trust)}}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
        "current-context": "test",
    }
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(document))


def by_certificate(certificate: Certificate) -> dict[str, str]:
    return {"client-certificate": str(certificate.certificate), "client-key": str(certificate.key)}

"""How tests reach a cluster: kubectl, clients, and the credentials of a service account."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient

from tests.cluster.certificates import Certificate


class KubectlFailed(Exception):
    """kubectl ended with an error; the text is what it said."""


class CallRefused(Exception):
    """What the API server said to a call."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status


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

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One call as the administrator, for what is asked so often that kubectl would start too many times. Raises `CallRefused`."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, context=_administrators(self.kubeconfig)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refusal:
            raise CallRefused(refusal.code, refusal.read().decode()) from None

    @asynccontextmanager
    async def client(self, kubeconfig: Path | None = None) -> AsyncIterator[ApiClient]:
        """A client of the `kubernetes` package, as the administrator unless told otherwise."""
        async with await config.new_client_from_config(str(kubeconfig or self.kubeconfig)) as client:
            yield client

    def token_for(self, service_account: str, namespace: str, audience: str = "") -> str:
        """A token of an existing service account, for the API server unless another audience is named."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [audience] if audience else []}}
        return str(self.call("POST", path, wanted)["status"]["token"])

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


@cache
def _administrators(kubeconfig: Path) -> ssl.SSLContext:
    document = yaml.safe_load(kubeconfig.read_text())
    [user], [cluster] = (entry["user"] for entry in document["users"]), (entry["cluster"] for entry in document["clusters"])
    context = ssl.create_default_context(cafile=cluster["certificate-authority"])
    context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context

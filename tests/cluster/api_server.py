"""The API-server level: a control plane without nodes. Tests play the kubelet by patching the status of pods."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.aio.client import ApiClient

from tests.cluster.access import CallRefused
from tests.cluster.control_plane import ControlPlane, loopback
from tests.cluster.programs import SERVER, programs
from tests.cluster.run_folder import RunFolder

CRDS = Path(__file__).parents[2] / "crds"
_ACCOUNT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class ApiServer:
    control_plane: ControlPlane

    @property
    def url(self) -> str:
        return self.control_plane.access.url

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator."""
        return self.control_plane.access.kubeconfig

    @property
    def audit(self) -> Path:
        """Every call that was answered, one JSON object a line; read it with `tests.cluster.calls.audited`."""
        return self.control_plane.audit

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self.control_plane.access.kubectl(*arguments, input=input)

    def get(self, *arguments: str) -> Any:
        """What `kubectl get` finds, as data."""
        return self.control_plane.access.get(*arguments)

    def kubeconfig_for(self, service_account: str, namespace: str, url: str = "") -> Path:
        """With which a client is that service account; `url` where it shall go through a proxy."""
        return self.control_plane.access.kubeconfig_for(service_account, namespace, url)

    def token_for(self, service_account: str, namespace: str, audience: str = "") -> str:
        return self.control_plane.access.token_for(service_account, namespace, audience)

    @asynccontextmanager
    async def client(self, kubeconfig: Path | None = None) -> AsyncIterator[ApiClient]:
        """`async with api_server.client() as client: core = CoreV1Api(client)`; the administrator's unless told otherwise."""
        async with self.control_plane.access.client(kubeconfig) as client:
            yield client

    def make_namespace(self, name: str) -> None:
        self.control_plane.access.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.wait_for_account(name)

    def wait_for_account(self, namespace: str) -> None:
        """Until the namespace has its default service account: the API server refuses pods before."""
        deadline = time.monotonic() + _ACCOUNT_SECONDS
        while True:
            try:
                self.control_plane.access.call("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
                return
            except CallRefused as refusal:
                if refusal.status != 404 or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def delete_namespace(self, name: str) -> None:
        """In the background."""
        self.control_plane.access.call("DELETE", f"/api/v1/namespaces/{name}")


_PODS_STAY = "--controllers=*,-pod-garbage-collector-controller"
"""Tests bind pods to nodes that only they know of, and that controller removes pods whose node does not exist."""


@contextmanager
def running(*more: str) -> Iterator[ApiServer]:
    """`more`: further arguments of the API server."""
    found = programs(SERVER)
    folder = RunFolder()
    try:
        control_plane = ControlPlane(found, folder, loopback())
        control_plane.start_etcd()
        control_plane.start_server(*more)
        install_crds(control_plane)  # before the controllers: the garbage collector looks for new kinds twice a minute only
        gates = (argument for argument in more if argument.startswith("--feature-gates="))
        control_plane.start_controllers(_PODS_STAY, *gates)
        try:
            yield ApiServer(control_plane)
        finally:
            control_plane.stop()
    finally:
        folder.remove()


def install_crds(control_plane: ControlPlane) -> None:
    if not any(CRDS.glob("*.yaml")):
        return
    control_plane.access.kubectl("apply", "--server-side", f"--filename={CRDS}")
    control_plane.access.kubectl("wait", "--for=condition=Established", "--timeout=20s", f"--filename={CRDS}")

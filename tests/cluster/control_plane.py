"""A real control plane: etcd, kube-apiserver and kube-controller-manager as child processes of the tests.

On loopback, or inside a network namespace, where the nodes of a cluster reach it.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.cluster.access import Access, by_certificate, write_kubeconfig
from tests.cluster.certificates import Authority, Certificate
from tests.cluster.children import Child, start, wait_until
from tests.cluster.programs import Programs
from tests.cluster.run_folder import RunFolder
from tidemill.local.ports import free_ports

SERVICES = "10.96.0.0/16"
ISSUER = "https://kubernetes.default.svc"
FIRST_SERVICE = "10.96.0.1"
_START_SECONDS = 120.0
_WATCHED_SECONDS = 3.0  # an API server that is watched would take a minute to end by itself
_AUDIT_POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a control plane listens; `enter` is put before its commands; `outside` is where the tests reach it."""

    address: str
    server_port: int
    etcd_port: int
    peer_port: int
    enter: tuple[str, ...] = ()
    outside: str = ""

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.server_port}"


def loopback() -> Place:
    server, etcd, peer = free_ports(3)
    return Place("127.0.0.1", server, etcd, peer)


@dataclass
class ControlPlane:
    programs: Programs
    folder: RunFolder
    place: Place
    authority: Authority = field(init=False)
    access: Access = field(init=False)
    audit: Path = field(init=False)
    children: dict[str, Child] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.authority = Authority(self.folder.subfolder("pki"))
        self.audit = self.folder.path / "audit.log"
        url = self.place.outside or self.place.url
        kubeconfig = self.folder.subfolder("kubeconfig") / "admin"
        self._administrator = self.authority.issue("admin", "admin", "system:masters")
        write_kubeconfig(kubeconfig, url, self.authority.certificate, by_certificate(self._administrator))
        self.access = Access(url, self.authority.certificate, kubeconfig, self.programs["kubectl"])
        self._certificate = self.authority.issue(
            "apiserver", "kube-apiserver", addresses=self._addresses(), names=("localhost", "kubernetes.default.svc")
        )
        self._signing = self.authority.signing_key("service-accounts")
        (self.folder.path / "audit-policy.yaml").write_text(yaml.safe_dump(_AUDIT_POLICY))

    def start_etcd(self) -> None:
        client, peer = (f"http://{self.place.address}:{port}" for port in (self.place.etcd_port, self.place.peer_port))
        self._start(
            "etcd",
            f"--data-dir={self.folder.path / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def start_server(self, *more: str) -> None:
        """Start the API server, and wait until it is ready."""
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://{self.place.address}:{self.place.etcd_port}",
            f"--bind-address={self.place.address}",
            f"--advertise-address={self.place.address}",
            f"--secure-port={self.place.server_port}",
            f"--service-cluster-ip-range={SERVICES}",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={self._certificate.certificate}",
            f"--tls-private-key-file={self._certificate.key}",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={self._signing}",
            f"--service-account-signing-key-file={self._signing}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            f"--audit-policy-file={self.folder.path / 'audit-policy.yaml'}",
            f"--audit-log-path={self.audit}",
            f"--kubelet-client-certificate={self._administrator.certificate}",
            f"--kubelet-client-key={self._administrator.key}",
            "--kubelet-preferred-address-types=InternalIP",
            # A loopback address is refused as the endpoint of the `kubernetes` service, which nobody uses where there are no nodes.
            *([] if self.place.enter else ["--endpoint-reconciler-type=none"]),
            *more,
        )
        wait_until(self.ready, f"the API server at {self.access.url} is ready", _START_SECONDS, *self.children.values())

    def start_controllers(self, *more: str) -> None:
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.component('kube-controller-manager')}",
            f"--service-account-private-key-file={self._signing}",
            f"--root-ca-file={self.authority.certificate}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--secure-port=0",
            *more,
        )

    def start_scheduler(self) -> None:
        self._start("kube-scheduler", f"--kubeconfig={self.component('kube-scheduler')}", "--leader-elect=false", "--secure-port=0")

    def component(self, name: str) -> Path:
        """The configuration of one of the cluster's own programs."""
        file = self.folder.subfolder("kubeconfig") / name
        write_kubeconfig(file, self.place.url, self.authority.certificate, by_certificate(self.authority.issue(name, f"system:{name}")))
        return file

    def inner_administrator(self) -> Path:
        """The administrator's configuration as seen from where the control plane is."""
        file = self.folder.subfolder("kubeconfig") / "inner-admin"
        write_kubeconfig(file, self.place.url, self.authority.certificate, by_certificate(self._administrator))
        return file

    def certificate(self, name: str) -> Certificate:
        """For a server of the tests on loopback that clients of this cluster shall trust."""
        return self.authority.issue(name, name, addresses=("127.0.0.1",), names=("localhost",))

    def ready(self) -> bool:
        trust = ssl.create_default_context(cafile=str(self.authority.certificate))
        try:
            with urllib.request.urlopen(f"{self.access.url}/readyz", context=trust, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """Stop all, the API server before etcd: it would wait for it."""
        for name in reversed(list(self.children)):
            self.children.pop(name).stop()

    def stop_one(self, name: str) -> None:
        self.children.pop(name).stop(_WATCHED_SECONDS)

    def _start(self, program: str, *arguments: str) -> None:
        self.children[program] = start(program, [*self.place.enter, self.programs[program], *arguments], self.folder)

    def _addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("127.0.0.1", self.place.address, FIRST_SERVICE)))

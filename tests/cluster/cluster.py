"""The node level: a whole cluster of several nodes on one machine, with everything that happens to real ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.cluster import archives
from tests.cluster.api_server import ApiServer, install_crds
from tests.cluster.children import Child, start, wait_until
from tests.cluster.control_plane import ControlPlane, Place
from tests.cluster.namespace import Namespace, make_namespace
from tests.cluster.network import CONTROL, make_switch, set_link
from tests.cluster.nodes import Node
from tests.cluster.programs import NODE, programs
from tests.cluster.run_folder import RunFolder
from tests.cluster.volumes import Provisioner
from tidemill.local.ports import free_ports

_READY_SECONDS = 180
_FORWARD_SECONDS = 20.0
_EVER = datetime.min.replace(tzinfo=UTC)
# A node that is silent for 20 s is lost, and its pods are evicted without a pause between them.
_IMPATIENT = ("--node-monitor-period=1s", "--node-monitor-grace-period=20s", "--node-eviction-rate=10", "--secondary-node-eviction-rate=10")


@dataclass(frozen=True, slots=True)
class Cluster(ApiServer):
    """An API server with nodes. `url` and `kubeconfig` are for programs of the tests; `inner_kubeconfig` for what runs where nodes and pods are."""

    control: Namespace
    nodes: list[Node]
    forwards: list[Child] = field(default_factory=list)

    @property
    def inner_kubeconfig(self) -> Path:
        return self.control_plane.inner_administrator()

    def inner_kubeconfig_for(self, service_account: str, namespace: str) -> Path:
        return self.kubeconfig_for(service_account, namespace, self.control_plane.place.url)

    def enter(self, node: int) -> tuple[str, ...]:
        """Put before a command, it runs on that node and reaches pods and services."""
        namespace = self.nodes[node].namespace
        assert namespace, f"n{node} is off"
        return namespace.enter

    def exec_in_node(self, node: int, *command: str) -> str:
        """Run a command of this machine on a node, and return what it wrote."""
        return self.nodes[node].run(*command)

    def stop_node(self, node: int) -> None:
        """Cut its power."""
        self.nodes[node].cut_power()

    def start_node(self, node: int) -> None:
        started = datetime.now(UTC).replace(microsecond=0)
        self.nodes[node].start()
        self.wait_for_nodes(node, since=started)

    def unplug(self, node: int) -> None:
        """It and its pods go on, and nobody reaches them, nor they anybody elsewhere."""
        set_link(self.control, node, up=False)

    def plug_in(self, node: int) -> None:
        set_link(self.control, node, up=True)

    def stop_api_server(self) -> None:
        self.control_plane.stop_one("kube-apiserver")

    def start_api_server(self) -> None:
        self.control_plane.start_server()

    def restart_etcd(self) -> None:
        self.control_plane.stop_one("etcd")
        self.control_plane.start_etcd()
        wait_until(self.control_plane.ready, "the API server is ready again", _READY_SECONDS, *self.control_plane.children.values())

    def import_image(self, archive: Path) -> None:
        """Give every node an image; pods need `imagePullPolicy: Never` or `IfNotPresent`."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.import_image(archive), self.nodes))

    def forward(self, address: str, port: int, node: int = 0) -> int:
        """A port on loopback that leads to a pod or service, as seen from a node."""
        namespace = self.nodes[node].namespace
        assert namespace, f"n{node} is off"
        (outside,) = free_ports(1)
        self.forwards.append(_forward(f"forward-{outside}", self.control_plane.folder, namespace, outside, address, port))
        return outside

    def wait_for_nodes(self, *nodes: int, since: datetime = _EVER) -> None:
        """Until these nodes, or all, are ready and have said so `since` then."""
        names = {self.nodes[node].name for node in nodes or range(len(self.nodes))}
        children = [child for node in self.nodes for child in node.children.values()]
        wait_until(lambda: names <= self._ready(since), f"the nodes {sorted(names)} are ready", _READY_SECONDS, *children)

    def _ready(self, since: datetime) -> set[str]:
        conditions = [(node["metadata"]["name"], c) for node in self.get("nodes")["items"] for c in node["status"].get("conditions", [])]
        ready = [(name, c) for name, c in conditions if (c["type"], c["status"]) == ("Ready", "True")]
        return {name for name, c in ready if datetime.fromisoformat(c["lastHeartbeatTime"]) >= since}


@contextmanager
def running_cluster(count: int = 2) -> Iterator[Cluster]:
    found = programs(NODE)
    folder = RunFolder()
    try:
        control = make_namespace("control", folder)
        make_switch(control)
        (outside,) = free_ports(1)
        _forward("forward-api", folder, control, outside, CONTROL, 6443)
        control_plane = ControlPlane(found, folder, Place(CONTROL, 6443, 2379, 2380, control.enter, f"https://127.0.0.1:{outside}"))
        control_plane.start_etcd()
        control_plane.start_server()
        install_crds(control_plane)
        control_plane.start_controllers(*_IMPATIENT)
        control_plane.start_scheduler()
        images = _images(folder)
        cluster = Cluster(control_plane, control, [Node(i, count, control_plane, control, list(images)) for i in range(count)])
        for node in cluster.nodes:
            node.start()
        cluster.wait_for_nodes()
        cluster.wait_for_account("default")
        provisioner = Provisioner(cluster.kubeconfig, folder.subfolder("volumes"))
        try:
            yield cluster
        finally:
            provisioner.stop()
    finally:
        folder.remove()


def _images(folder: RunFolder) -> tuple[Path, ...]:
    pause, host = (folder.subfolder("images") / name for name in ("pause.tar", "host.tar"))
    archives.write_pause(pause)
    archives.write_host(host)
    return pause, host


def _forward(name: str, folder: RunFolder, namespace: Namespace, port: int, address: str, target_port: int) -> Child:
    network = f"/proc/{namespace.process}/ns/net"
    child = start(name, [sys.executable, "-m", "tests.cluster.forwarding", str(port), network, address, str(target_port)], folder)
    wait_until(lambda: "ready" in child.log.read_text(), f"port {port} leads to {address}:{target_port}", _FORWARD_SECONDS, child)
    return child

"""A node: containerd, kubelet, kube-proxy, and kube-router as the agent that enforces NetworkPolicy, in namespaces and a control group of its own."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import groups
from tests.cluster.access import by_certificate, write_kubeconfig
from tests.cluster.archives import PAUSE
from tests.cluster.children import Child, start, wait_until
from tests.cluster.control_plane import SERVICES, ControlPlane
from tests.cluster.machine import PLUGINS
from tests.cluster.namespace import Namespace, make_namespace
from tests.cluster.network import ALL_PODS, Addresses, plug_in, pull_out
from tests.cluster.sweeping import kill_group

_START_SECONDS = 120.0
_SOCKET = "/run/containerd/containerd.sock"
# What the kubelet sets for the whole machine; a node gets files of its own there.
_KERNEL_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
_OWN_FOLDERS = ("/var/lib", "/var/log")  # programs have places there that no option moves


@dataclass
class Node:
    index: int
    count: int  # of nodes in the cluster
    control_plane: ControlPlane
    control: Namespace
    archives: list[Path]  # images it has from the start
    namespace: Namespace | None = None
    children: dict[str, Child] = field(default_factory=dict)
    imported: set[Path] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"n{self.index}"

    @property
    def group(self) -> str:
        return f"{self.control_plane.folder.name}/{self.name}"

    @property
    def folder(self) -> Path:
        return self.control_plane.folder.subfolder(self.name)

    @property
    def addresses(self) -> Addresses:
        return Addresses(self.index)

    def start(self) -> None:
        """Power it on. What it knew of images and pods is still there."""
        groups.make_group(self.group)
        self.namespace = make_namespace(f"{self.name}-holder", self.control_plane.folder)
        groups.join(self.group, self.namespace.process)
        self._separate(self.namespace)
        plug_in(self.control, self.namespace, self.index, self.count)
        self._start_runtime()
        for archive in self.archives:
            if archive not in self.imported:
                self.import_image(archive)
        self._start_kubernetes()

    def cut_power(self) -> None:
        """Everything on it dies at once and nobody is told."""
        pull_out(self.control, self.index)
        kill_group(self.group)
        for child in self.children.values():
            child.process.wait()
        self.children.clear()
        if self.namespace:
            self.namespace.holder.process.wait()
            self.namespace = None

    def run(self, *command: str) -> str:
        assert self.namespace, f"{self.name} is off"
        return self.namespace.run(*command)

    def import_image(self, archive: Path) -> None:
        self.run(self.control_plane.programs["ctr"], f"--address={_SOCKET}", "--namespace=k8s.io", "images", "import", "--local", str(archive))
        self.imported.add(archive)

    def _separate(self, namespace: Namespace) -> None:
        for place in _OWN_FOLDERS:
            upper, work = (self._subfolder(f"overlay{place}/{part}") for part in ("upper", "work"))
            namespace.run("mount", "-t", "overlay", "own", f"-olowerdir={place},upperdir={upper},workdir={work}", place)
        for setting in _KERNEL_SETTINGS:
            place = Path("/proc/sys", setting)
            namespace.run("mount", "--bind", str(self._write(place.name, place.read_text())), str(place))

    def _start_runtime(self) -> None:
        network = self._subfolder("cni") / "10-pods.conflist"
        network.write_text(json.dumps(self._pod_network()))
        child = self._start("containerd", f"--config={self._write('containerd.toml', self._containerd())}")
        assert self.namespace
        asked = [*self.namespace.enter, self.control_plane.programs["ctr"], f"--address={_SOCKET}", "version"]
        wait_until(lambda: subprocess.run(asked, capture_output=True).returncode == 0, f"containerd of {self.name} answers", _START_SECONDS, child)

    def _start_kubernetes(self) -> None:
        plane = self.control_plane
        kubeconfig = self._kubeconfig()
        named = f"--hostname-override={self.name}"
        settings = f"--config={self._write('kubelet.yaml', yaml.safe_dump(self._kubelet()))}"
        places = (f"--root-dir={self.folder / 'kubelet'}", f"--node-ip={self.addresses.node}")
        kubelet = self._start("kubelet", settings, f"--kubeconfig={kubeconfig}", named, *places)
        untuned = [f"--conntrack-{setting}=0" for setting in ("max-per-core", "tcp-timeout-established", "tcp-timeout-close-wait")]
        proxy = f"--kubeconfig={plane.component('kube-proxy')}"
        self._start("kube-proxy", proxy, named, "--proxy-mode=iptables", f"--cluster-cidr={ALL_PODS}", *untuned)
        wait_until(self._registered, f"the kubelet of {self.name} has registered it", _START_SECONDS, kubelet)  # kube-router asks for it once
        roles = ["--run-firewall=true", "--run-router=false", "--run-service-proxy=false", f"--service-cluster-ip-range={SERVICES}"]
        self._start("kube-router", f"--kubeconfig={plane.inner_administrator()}", named, *roles, environment={"NODE_NAME": self.name})

    def _registered(self) -> bool:
        return bool(self.control_plane.access.kubectl("get", "node", self.name, "--ignore-not-found"))

    def _start(self, program: str, *arguments: str, environment: dict[str, str] | None = None) -> Child:
        assert self.namespace
        plane = self.control_plane
        environment = {"PATH": plane.programs.search_path(), **(environment or {})}
        child = start(f"{self.name}-{program}", [*self.namespace.enter, plane.programs[program], *arguments], plane.folder, environment)
        groups.join(self.group, child.process.pid)
        self.children[program] = child
        return child

    def _kubeconfig(self) -> Path:
        user = f"system:node:{self.name}"
        self.certificate = self.control_plane.authority.issue(self.name, user, "system:nodes", addresses=(self.addresses.node,), names=(self.name,))
        file = self.folder / "kubeconfig"
        write_kubeconfig(file, self.control_plane.place.url, self.control_plane.authority.certificate, by_certificate(self.certificate))
        return file

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.control_plane.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "address": self.addresses.node,
            "tlsCertFile": str(self.certificate.certificate),
            "tlsPrivateKeyFile": str(self.certificate.key),
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "nodeStatusUpdateFrequency": "3s",
            "nodeLeaseDurationSeconds": 12,
            "volumePluginDir": str(self._subfolder("volume-plugins")),
            "resolvConf": str(self._write("resolv.conf", "")),
            # A full disk is the machine's affair, not this node's.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
        }

    def _pod_network(self) -> dict[str, Any]:
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.addresses.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/pod-addresses",
        }
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": addresses}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]}

    def _containerd(self) -> str:
        return f"""
version = 3
root = "{self.folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{_SOCKET}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true  # where this process may not lower its own score, no pod would start
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{PLUGINS}"]
  conf_dir = "{self.folder}/cni"
"""

    def _subfolder(self, name: str) -> Path:
        return self.control_plane.folder.subfolder(f"{self.name}/{name}")

    def _write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text)
        return file

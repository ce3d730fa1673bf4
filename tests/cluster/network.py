"""The network of a cluster: a switch, beside which the control plane listens, and a link from it to each node. All in namespaces of their own."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tests.cluster.namespace import Namespace

CONTROL = "10.77.0.1"
ALL_PODS = "10.244.0.0/16"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Those of node number `index`."""

    index: int

    @property
    def node(self) -> str:
        return f"10.77.0.{10 + self.index}"

    @property
    def pods(self) -> str:
        return f"10.244.{self.index}.0/24"

    @property
    def link(self) -> str:
        """The same after a restart: the others remember it for a while."""
        return f"02:00:00:00:00:{10 + self.index:02x}"


def make_switch(control: Namespace) -> None:
    control.run("ip", "link", "add", "switch", "type", "bridge")
    control.run("ip", "address", "add", f"{CONTROL}/24", "dev", "switch")
    control.run("ip", "link", "set", "switch", "up")


def plug_in(control: Namespace, node: Namespace, index: int, count: int) -> None:
    """Link one node of `count` to the switch, and tell it and the control plane how to reach everybody's pods."""
    mine = Addresses(index)
    port = _port(index)
    control.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "address", mine.link, "netns", str(node.process))
    control.run("ip", "link", "set", port, "master", "switch", "up")
    node.run("ip", "address", "add", f"{mine.node}/24", "dev", "eth0")
    node.run("ip", "link", "set", "eth0", "up")
    node.run("ip", "route", "add", "default", "via", CONTROL)
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")
    control.run("ip", "route", "replace", mine.pods, "via", mine.node)
    for other in (Addresses(i) for i in range(count) if i != index):
        node.run("ip", "route", "add", other.pods, "via", other.node)


def pull_out(control: Namespace, index: int) -> None:
    with suppress(RuntimeError):  # it may have gone with the node's namespace, unless a forwarder keeps that
        control.run("ip", "link", "delete", _port(index))


def set_link(control: Namespace, index: int, up: bool) -> None:
    control.run("ip", "link", "set", _port(index), "up" if up else "down")


def _port(index: int) -> str:
    return f"port{index}"

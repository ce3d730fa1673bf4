"""Whether a cluster with nodes can run on this machine: `python -m tests.cluster.machine` installs what Debian has, and says what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PLUGINS = Path("/usr/lib/cni")
# A file of each package that is needed.
PACKAGES = {
    "runc": "runc",
    "containernetworking-plugins": f"{PLUGINS}/bridge",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "iproute2": "ip",
    "socat": "socat",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
}
# In a network of its own: nothing of the machine's changes.
_KERNEL = {
    "bridges and virtual links": "ip link add switch type bridge && ip link add port type veth peer name plug",
    "iptables with conntrack and comments": "iptables -A INPUT -m conntrack --ctstate NEW -m comment --comment why -j ACCEPT",
    "iptables with statistics": "iptables -A INPUT -m statistic --mode random --probability 0.5 -j ACCEPT",
    "network address translation": "iptables -t nat -A POSTROUTING -j MASQUERADE",
    "address sets": "ipset create s hash:ip && iptables -A INPUT -m set --match-set s src -j ACCEPT",
    "physdev matches": "iptables -A FORWARD -m physdev --physdev-is-bridged -j ACCEPT",
}


def missing_packages() -> list[str]:
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    return [package for package, file in PACKAGES.items() if not shutil.which(file, path=path)]


def missing_features() -> list[str]:
    """What this kernel lacks, or this container may not do."""
    lacking = []
    for feature, command in _KERNEL.items():
        done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", f"mount -t tmpfs run /run && {command}"], capture_output=True, text=True)
        if done.returncode:
            lacking.append(f"{feature} ({done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no reason given'})")
    if "overlay" not in Path("/proc/filesystems").read_text():
        lacking.append("the overlay file system")
    return lacking


def install(packages: list[str]) -> None:
    print(f"[test cluster] installing with apt: {' '.join(packages)}", file=sys.stderr, flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-qq", *command], env=environment, capture_output=True, text=True)
        if done.returncode and command != ["update"]:
            sys.exit(f"apt-get {' '.join(command)} failed:\n{done.stderr.strip()}")


def obstacle() -> str:
    """Why no cluster can run here; empty when one can."""
    if os.geteuid() != 0:
        return "The test cluster runs real nodes in network namespaces, which needs root: run `make test-cluster` as root. `make test` needs none."
    if packages := missing_packages():
        return f"The test cluster needs the programs of these Debian packages: {' '.join(packages)}. `make test-cluster` installs them with apt."
    if lacking := missing_features():
        return "The test cluster cannot run here. This kernel, or the container this runs in, lacks:\n- " + "\n- ".join(lacking)
    return ""


def main() -> None:
    if os.geteuid() == 0 and shutil.which("apt-get") and (packages := missing_packages()):
        install(packages)
    if reason := obstacle():
        sys.exit(reason)


if __name__ == "__main__":
    main()

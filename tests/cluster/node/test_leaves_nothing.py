"""However the tests end, the machine is as it was: no process, mount, control group, network or file of a cluster stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import until
from tests.cluster.sweeping import cgroups, inhabitants, marked

ROOT = Path(__file__).parents[3]
HOLDER = """
import time
from tests.cluster.cluster import running_cluster
from tests.cluster.pods import create, python_pod, wait_ready
with running_cluster(count=1) as cluster:
    create(cluster, "default", python_pod("lives", "import time; time.sleep(3600)"))
    wait_ready(cluster, "default", "lives")
    print(cluster.control_plane.folder.path, flush=True)
    time.sleep(600)
"""
SETTINGS = [Path("/proc/sys/vm/overcommit_memory"), Path("/proc/sys/kernel/panic"), Path("/proc/sys/kernel/panic_on_oops")]
PLACES = [Path(place) for place in ("/run", "/run/netns", "/var/lib", "/var/log", "/opt", "/etc")]


def traces() -> dict[str, object]:
    """What a cluster might change outside its folder."""
    return {
        "settings": [setting.read_text() for setting in SETTINGS],
        "files": {str(e) for place in PLACES if place.exists() for e in place.iterdir() if re.search("cni|containerd|kube|netns|pods", e.name)},
        "links": subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout,
        "rules": subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout.count("KUBE"),
    }


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_second_cluster_beside_the_first_leaves_nothing(cluster: Cluster, end: signal.Signals) -> None:
    before = traces()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests that run in a shell's background were told to ignore it
    )
    try:
        assert holder.stdout
        folder = Path(holder.stdout.readline().strip())
        assert len(inhabitants(folder.name)) >= 7  # the node's holder and four programs, the pod's shim and its two containers
    finally:
        holder.send_signal(end)
        holder.wait()
    until(lambda: not folder.exists(), f"{folder} is gone", 60)
    assert not marked(folder.name)
    assert not cgroups(folder.name)
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert traces() == before
    assert len(cluster.get("nodes")["items"]) == len(cluster.nodes)

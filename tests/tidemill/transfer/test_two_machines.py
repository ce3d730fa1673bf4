"""Weights and gradients between cells that share no network, no processes and no shared memory, as pods of two nodes do not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tidemill.transfer import checksum

HERE = Path(__file__).parent
BYTES = 3_000_001


def privileged() -> str:
    """Why this cannot be tried here, or "". Being root is not enough in many containers."""
    probe = subprocess.run(["unshare", "--net", "--ipc", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    return probe.stderr.strip()


pytestmark = pytest.mark.skipif(bool(privileged()), reason=f"network namespaces cannot be made here: {privileged()}")


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces that are joined by a wire; 10.9.8.1 and 10.9.8.2."""
    names = tuple(f"tm{os.getpid()}-{n}" for n in (1, 2))

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.9.8.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def start(machine: str, way: str, script: str, *arguments: str) -> subprocess.Popen[str]:
    isolated = ["ip", "netns", "exec", machine, "unshare", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    environment = {**os.environ, "TIDEMILL_TRANSPORT": way}
    command = [*isolated, sys.executable, str(HERE / script), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("way", ["plain", "nixl"])
def test_what_one_machine_exports_another_reads_whole(machines: tuple[str, str], way: str) -> None:
    one, other = machines
    holder = start(one, way, "holder.py", str(BYTES), "0.0.0.0", "10.9.8.1")
    reader = start(other, way, "reader.py")
    try:
        assert holder.stdout
        descriptor = holder.stdout.readline()
        read, _ = reader.communicate(descriptor, timeout=120)
        assert read.strip() == checksum.of_bytes(np.arange(BYTES, dtype=np.uint8).data)
        assert way != "plain" or '"peer":"10.9.8.1:' in descriptor
    finally:
        for process in (holder, reader):
            process.kill()
            process.communicate()

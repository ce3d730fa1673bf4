"""Both transports between two real processes, and what a puller sees when the other one is stopped, killed or gone."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tidemill.transfer import Region, TransferFailed, Transport, transport
from tidemill.wire.trainer import MemoryDescriptor

WAYS = ("nixl", "nixl over tcp", "plain")
HOLDER = Path(__file__).with_name("holder.py")


@dataclass
class Holder:
    process: subprocess.Popen[str]
    descriptor: MemoryDescriptor

    def order(self, line: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextmanager
def holder(nbytes: int) -> Iterator[Holder]:
    process = subprocess.Popen([sys.executable, str(HOLDER), str(nbytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield Holder(process, msgspec.json.decode(process.stdout.readline(), type=MemoryDescriptor))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Transport]:
    name, _, over = request.param.partition(" over ")
    monkeypatch.setenv("TIDEMILL_TRANSPORT", name)
    if over:
        monkeypatch.setenv("UCX_TLS", "tcp,self")
    chosen = transport()
    yield chosen
    chosen.close()


def region(memory: np.ndarray) -> Region:
    return Region(memory.ctypes.data, memory.nbytes)


def test_a_pull_copies_what_the_other_process_holds_at_that_moment(way: Transport) -> None:
    target = np.zeros(5_000_001, np.uint8)
    with holder(target.nbytes) as source:
        way.pull(source.descriptor, region(target), 30)
        assert np.array_equal(target, np.arange(target.nbytes, dtype=np.uint8))
        source.order("fill 7")
        way.pull(source.descriptor, region(target), 30)
        assert (target == 7).all()


def test_several_processes_are_read_at_the_same_time(way: Transport) -> None:
    targets = [np.zeros(1_000_000, np.uint8) for _ in range(3)]
    with holder(1_000_000) as source:
        pulls = [threading.Thread(target=way.pull, args=(source.descriptor, region(target), 30)) for target in targets]
        for pull in pulls:
            pull.start()
        for pull in pulls:
            pull.join()
    assert all(np.array_equal(target, np.arange(target.nbytes, dtype=np.uint8)) for target in targets)


@pytest.mark.parametrize("way", ["nixl over tcp", "plain"], indirect=True)
def test_a_peer_that_is_killed_in_mid_pull_fails_the_pull_within_the_deadline(way: Transport) -> None:
    """Stopped first, so that the read is certainly under way and unfinished when the process dies."""
    target = np.zeros(64 * 2**20, np.uint8)
    with holder(target.nbytes) as source:
        source.process.send_signal(signal.SIGSTOP)
        killer = threading.Timer(0.5, source.process.kill)
        killer.start()
        started = time.monotonic()
        with pytest.raises(TransferFailed):
            way.pull(source.descriptor, region(target), 5)
        assert time.monotonic() - started < 6
        killer.join()


def test_a_peer_that_hangs_fails_the_pull_at_the_deadline(way: Transport) -> None:
    target = np.zeros(64 * 2**20, np.uint8)
    with holder(target.nbytes) as source:
        source.process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(TransferFailed):
            way.pull(source.descriptor, region(target), 1)
        assert time.monotonic() - started < 2


def test_a_peer_that_is_gone_fails_the_pull_and_the_next_pull_from_another_works(way: Transport) -> None:
    target = np.zeros(1000, np.uint8)
    with holder(1000) as source:
        gone = source.descriptor
    with pytest.raises(TransferFailed):
        way.pull(gone, region(target), 5)
    with holder(1000) as source:
        way.pull(source.descriptor, region(target), 10)
    assert np.array_equal(target, np.arange(1000, dtype=np.uint8))


@pytest.mark.parametrize("way", ["plain"], indirect=True)
def test_memory_that_was_withdrawn_is_not_read(way: Transport) -> None:
    target = np.zeros(1000, np.uint8)
    with holder(1000) as source:
        source.order("withdraw")
        with pytest.raises(TransferFailed, match="does not export"):
            way.pull(source.descriptor, region(target), 5)


@pytest.mark.parametrize("way", ["plain"], indirect=True)
def test_only_whoever_was_given_the_descriptor_can_read(way: Transport) -> None:
    target = np.zeros(1000, np.uint8)
    with holder(1000) as source:
        endpoint = source.descriptor.peer.partition("/")[0]
        forged = msgspec.structs.replace(source.descriptor, peer=f"{endpoint}/{'00' * 16}")
        with pytest.raises(TransferFailed):
            way.pull(forged, region(target), 5)
        elsewhere = msgspec.structs.replace(source.descriptor, address=source.descriptor.address + 8, nbytes=992)
        with pytest.raises(TransferFailed):
            way.pull(elsewhere, region(target[:992]), 5)


def test_a_target_of_another_size_is_refused(way: Transport) -> None:
    target = np.zeros(10, np.uint8)
    with pytest.raises(TransferFailed, match="1000 bytes, the target 10"):
        way.pull(MemoryDescriptor("nixl" if os.environ["TIDEMILL_TRANSPORT"] == "nixl" else "plain", "", 0, 1000), region(target), 5)


def test_an_exporting_process_that_is_not_read_from_stays_idle(way: Transport) -> None:
    memory = np.zeros(1000, np.uint8)
    descriptor = way.export(region(memory))
    before = time.process_time()
    time.sleep(0.5)  # the time over which the load is measured
    assert time.process_time() - before < 0.15
    way.withdraw(descriptor)


def test_an_unknown_transport_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_TRANSPORT", "pigeon")
    with pytest.raises(ValueError, match=r"pigeon.*nixl or plain"):
        transport()

"""The agent's GPU telemetry against the shared-library interface of the driver, in a stub that answers what a file says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import pytest

from tidemill_cell.gpu.watch import Seen

HERE = Path(__file__).parent
GIB = 2**30
H100 = {
    "utilization": 37,
    "memory_used": 60 * GIB,
    "memory_total": 80 * GIB,
    "power": 412_500,
    "temperature": 61,
    "reasons": 0x4 | 0x40 | 0x1,  # power cap, hardware thermal; idle is none of ours
    "field138": 3,
    "field139": 5,
    "gpm": 1,
    "sm": 25,
    "xids": 0,
    "xid": 79,
    "uuid": "GPU-5a3c",
}
WHOLE_FIELDS = {"sm_activity": 0.25, "power_watts": 412.5, "nvlink_sent_bytes": 3072, "nvlink_received_bytes": 5120}


@pytest.fixture(scope="module", params=["new driver", "old driver"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnvidia-ml.so.1. The old one knows clocks' reasons by their old name."""
    folder = tmp_path_factory.mktemp("driver")
    old = ["-DOLD_DRIVER"] if request.param == "old driver" else []
    subprocess.run(["cc", "-shared", "-fPIC", *old, "-o", str(folder / "libnvidia-ml.so.1"), str(HERE / "nvml_stub.c")], check=True)
    return folder


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs, as its driver tells of them, and a process that looks at some."""

    file: Path
    process: subprocess.Popen[str]

    def tells(self, **lines: int | str) -> None:
        write(self.file, {**read(self.file), **{key.replace("__", "."): value for key, value in lines.items()}})

    def seen(self) -> tuple[Seen, ...]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return msgspec.json.decode(self.process.stdout.readline(), type=tuple[Seen, ...])

    def until(self, holds: Callable[[tuple[Seen, ...]], bool]) -> tuple[Seen, ...]:
        """What is seen once `holds` of it."""
        deadline = time.monotonic() + 20.0
        while not holds(seen := self.seen()):
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)
        return seen


def write(file: Path, lines: dict[str, int | str]) -> None:
    beside = file.with_suffix(".new")
    beside.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
    beside.replace(file)


def read(file: Path) -> dict[str, int | str]:
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


def gpu(index: int, **fields: int | str) -> dict[str, int | str]:
    return {f"{index}.{key}": value for key, value in {**H100, **fields}.items()}


@contextmanager
def node(folder: Path, driver: Path | None, lines: dict[str, int | str], names: str, deadline_seconds: float = 15.0) -> Iterator[Node]:
    file = folder / "nvml"
    write(file, lines)
    environment = os.environ | {"NVML_STUB": str(file), "LD_LIBRARY_PATH": str(driver or folder)}
    command = [sys.executable, str(HERE / "watching.py"), names, "0.05", str(deadline_seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        yield Node(file, process)
    finally:
        process.kill()
        process.communicate()


def answer(seen: tuple[Seen, ...]) -> bool:
    return all(one.reading is not None and one.reading.sm_activity is not None for one in seen)


def test_a_gpu_tells_everything_in_base_units_and_only_this_cells_gpus_are_looked_at(driver: Path, tmp_path: Path) -> None:
    lines = {"count": 3, **gpu(0), **gpu(1, utilization=90, uuid="GPU-77"), **gpu(2)}
    with node(tmp_path, driver, lines, "0,GPU-77") as machine:
        first, second = machine.until(answer)
    assert first.reading is not None
    assert asdict(first.reading) | {"throttled": dict(first.reading.throttled or ())} == {
        "utilization": 0.37,
        "memory_used_bytes": 60 * GIB,
        "memory_total_bytes": 80 * GIB,
        "temperature_celsius": 61.0,
        "throttled": {
            "power_cap": True,
            "hardware_slowdown": False,
            "sync_boost": False,
            "software_thermal": False,
            "hardware_thermal": True,
            "power_brake": False,
        },
        **WHOLE_FIELDS,
    }
    assert first.errors == ()
    assert (first.gpu, second.gpu) == ("0", "GPU-77")
    assert second.reading is not None
    assert second.reading.utilization == 0.9


def test_errors_are_counted_from_when_the_agent_began_each_by_its_number(driver: Path, tmp_path: Path) -> None:
    with node(tmp_path, driver, {"count": 1, **gpu(0, xids=4)}, "0") as machine:
        machine.until(answer)
        machine.tells(**{"0__xids": 7})
        machine.until(lambda seen: seen[0].errors == ((79, 3),))
        machine.tells(**{"0__xids": 8, "0__xid": 48})
        machine.until(lambda seen: seen[0].errors == ((48, 1), (79, 3)))


def test_what_a_gpu_does_not_support_is_absent_and_the_rest_is_told(driver: Path, tmp_path: Path) -> None:
    few = {"count": 1, "0.utilization": 10, "0.temperature": 40, "0.power.error": 4, "0.memory_total": 5, "0.memory_used.error": 3}
    with node(tmp_path, driver, few, "0") as machine:
        (one,) = machine.until(lambda seen: seen[0].reading is not None)
    assert one.reading is not None
    assert one.errors is None
    told = {name: value for name in one.reading.__slots__ if (value := getattr(one.reading, name)) is not None}
    assert told == {"utilization": 0.1, "temperature_celsius": 40}


def test_links_are_added_up_where_the_driver_does_not(driver: Path, tmp_path: Path) -> None:
    links = {f"0.link{link}.field{field}": link + 1 for link in (0, 1, 3) for field in (138, 139)}  # one of four is down
    apart = {key: value for key, value in gpu(0).items() if "field" not in key}
    with node(tmp_path, driver, {"count": 1, **apart, "0.links": 4, **links}, "0") as machine:
        (one,) = machine.until(answer)
    assert one.reading is not None
    assert (one.reading.nvlink_sent_bytes, one.reading.nvlink_received_bytes) == (7 * 1024, 7 * 1024)


def test_a_lost_gpu_is_told_as_gone_with_what_to_do_its_neighbour_goes_on_and_it_may_come_back(driver: Path, tmp_path: Path) -> None:
    with node(tmp_path, driver, {"count": 2, **gpu(0), **gpu(1)}, "0,1") as machine:
        machine.until(answer)
        machine.tells(**{"0__error": 15, "1__utilization": 99})
        lost, other = machine.until(lambda seen: seen[0].reading is None and seen[1].reading is not None and seen[1].reading.utilization == 0.99)
        assert "lost" in lost.reason.lower()
        assert "drain the node" in lost.reason
        assert other.reason == ""
        machine.tells(**{"0__error": 0})
        machine.until(answer)


def test_a_gpu_that_hangs_is_told_as_silent_after_the_deadline_and_asking_does_not_wait_for_it(driver: Path, tmp_path: Path) -> None:
    with node(tmp_path, driver, {"count": 1, **gpu(0)}, "0", deadline_seconds=0.5) as machine:
        machine.until(answer)
        machine.tells(hang=600)
        (one,) = machine.until(lambda seen: seen[0].reading is None)
        assert one.reason == "no answer for 0.5 s"
        began = time.monotonic()
        machine.seen()
        assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(
    ("lines", "names", "said"),
    [
        ({"init.error": 9}, "0", "load the NVIDIA driver"),
        ({"init.error": 18}, "0", "restart the node"),
        ({"count": 1}, "1", "Invalid Argument"),
        ({"count": 1, **gpu(0)}, "GPU-99", "nvidia-smi -L"),
    ],
    ids=["driver not loaded", "driver upgraded underneath", "no such index", "no such name"],
)
def test_a_gpu_that_cannot_be_opened_says_why(lines: dict[str, int | str], names: str, said: str, driver: Path, tmp_path: Path) -> None:
    with node(tmp_path, driver, lines, names) as machine:
        (one,) = machine.until(lambda seen: said in seen[0].reason)
    assert one.reading is None
    assert one.errors is None


def test_a_machine_without_the_drivers_library_says_so(tmp_path: Path) -> None:
    with node(tmp_path, None, {}, "0") as machine:
        (one,) = machine.until(lambda seen: "libnvidia-ml" in seen[0].reason)
    assert one.reading is None


def test_a_cell_without_gpus_tells_of_none_and_starts_nothing(tmp_path: Path) -> None:
    with node(tmp_path, None, {}, "") as machine:
        assert machine.seen() == ()


@pytest.mark.parametrize("name", ["MIG-1f", "0"])
def test_of_a_slice_its_own_memory_and_activity_are_told_and_not_what_its_neighbours_would_tell_again(
    name: str, driver: Path, tmp_path: Path
) -> None:
    parts = {"0.mig": 1, "0.slice.uuid": "MIG-1f", "0.slice.instance": 7, "0.slice.memory_total": 20, "0.slice.memory_used": 5, "0.slice.sm": 50}
    lines = {"count": 1, **gpu(0), **parts}
    with node(tmp_path, driver, lines, name) as machine:
        (one,) = machine.until(answer)
        assert one.reading is not None
        assert (one.reading.memory_used_bytes, one.reading.memory_total_bytes, one.reading.sm_activity) == (5, 20, 0.5)
        assert one.reading.temperature_celsius == 61
        assert (one.reading.power_watts, one.reading.nvlink_sent_bytes, one.reading.utilization) == (None, None, None)
        machine.tells(**{"0__xid_instance": 3, "0__xids": 1})  # of the neighbour
        machine.tells(**{"0__xid_instance": 3, "0__xids": 1, "0__temperature": 70})
        machine.until(lambda seen: seen[0].reading is not None and seen[0].reading.temperature_celsius == 70)
        assert machine.seen()[0].errors == ()
        machine.tells(**{"0__xid_instance": 7, "0__xids": 2})
        machine.until(lambda seen: seen[0].errors == ((79, 1),))

"""Whether this machine has the memory for a job, before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GIB = 2**30

ENGINE_BASE_BYTES = int(1.6 * GIB)
"""A vLLM server on a CPU apart from weights and KV: its processes share most of their pages (measured)."""

TRAINER_BASE_BYTES = int(0.6 * GIB)
"""Python and torch, and the activations of one micro-step."""

REST_BYTES = 1 * GIB
"""Gateway, conductor, harnesses, the runner."""


class NotEnoughMemory(Exception):
    """The machine cannot hold the job. The message has the figures."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes a job needs on one machine. A satellite's trainer holds weights, gradients and an exported sum; the core adds the master
    copy, two AdamW moments, a staging buffer and the published snapshot."""

    weight_bytes: int  # of the published weights
    parameters: int
    cells: int
    standalone: int
    kv_bytes: int  # of one engine

    @property
    def engine_bytes(self) -> int:
        return ENGINE_BASE_BYTES + 2 * self.weight_bytes + self.kv_bytes  # the second copy receives an update

    @property
    def satellite_bytes(self) -> int:
        return TRAINER_BASE_BYTES + 3 * 4 * self.parameters

    @property
    def core_bytes(self) -> int:
        return TRAINER_BASE_BYTES + 6 * 4 * self.parameters + 2 * self.weight_bytes

    @property
    def total_bytes(self) -> int:
        engines = (self.cells + self.standalone) * self.engine_bytes
        return REST_BYTES + engines + self.core_bytes + (self.cells - 1) * self.satellite_bytes


def check_memory(footprint: Footprint, available_bytes: int) -> None:
    """Raises `NotEnoughMemory` when the job would not fit."""
    if footprint.total_bytes > available_bytes:
        raise NotEnoughMemory(
            f"the job needs about {footprint.total_bytes / GIB:.1f} GiB ({footprint.cells + footprint.standalone} engines of "
            f"{footprint.engine_bytes / GIB:.1f}, a core of {footprint.core_bytes / GIB:.1f}, {footprint.cells - 1} satellites of "
            f"{footprint.satellite_bytes / GIB:.1f}), but {available_bytes / GIB:.1f} GiB are available; lower spec.cells.count, "
            "spec.cells.capacity or spec.model.maxLength"
        )


def available_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that new processes can have: what the kernel calls available, and no more than this cgroup's limit leaves."""
    meminfo = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    for limit_file, used_file in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        limit, used = cgroup / limit_file, cgroup / used_file
        if limit.exists() and used.exists() and limit.read_text().strip() != "max":
            left = int(limit.read_text()) - int(used.read_text())
            available = min(available, max(0, left))
    return available

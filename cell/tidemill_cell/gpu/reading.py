"""One look at one GPU, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


class GpuGone(Exception):
    """A GPU, or the driver of all of them, answers nothing any more. The message says what NVML says, and what to do."""


@dataclass(frozen=True, slots=True)
class Reading:
    """None: this GPU, its driver or its slice does not tell. Counters count since the driver was loaded."""

    utilization: float | None = None  # share of time in which a kernel ran, 0 to 1
    sm_activity: float | None = None  # share of streaming multiprocessors that were busy, 0 to 1; Hopper and later
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    throttled: tuple[tuple[str, bool], ...] | None = None  # by reason
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None

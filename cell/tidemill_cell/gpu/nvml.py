"""NVML, through nvidia-ml-py: one GPU opened by the name that CUDA has for it, looked at, asked for errors. Calls block when a GPU is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from tidemill_cell.gpu.reading import GpuGone, Reading

REASONS = {
    "power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hardware_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
    "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
    "software_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hardware_thermal": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    "power_brake": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
"""Why clocks are lower than they could be. Idle and chosen clocks are no throttling."""

_UNTOLD = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # what a slice answers to what only a whole GPU has
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # an older driver
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_READY,
    }
)
_REMEDIES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no libnvidia-ml.so.1; give the container the driver (NVIDIA's runtime, capability utility)",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the NVIDIA driver on the node",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded under a running node; restart the node",
    pynvml.NVML_ERROR_GPU_IS_LOST: "the GPU fell off the bus; drain the node and restart it",
    pynvml.NVML_ERROR_RESET_REQUIRED: "drain the node and reset the GPU",
}
_ALL_LINKS = 0xFFFFFFFF
_WHOLE_GPU = 0xFFFFFFFF  # an event's instance, when it is none of a slice


@dataclass(frozen=True, slots=True)
class Handle:
    """A GPU, or a slice of one (MIG). Of a slice, what it shares with others is not told where others would add it up again."""

    own: Any  # of the slice, or of the whole GPU
    whole: Any
    slice_of: int | None = None  # GPU instance


def begin() -> None:
    """Load the driver's library. Raises `GpuGone`."""
    _asked(pynvml.nvmlInit)


def find(name: str) -> Handle:
    """The GPU that `CUDA_VISIBLE_DEVICES=name` makes visible. Raises `GpuGone`."""
    if name.startswith("MIG-"):
        return _slice(_asked(lambda: pynvml.nvmlDeviceGetHandleByUUID(name)))
    whole = _asked(lambda: pynvml.nvmlDeviceGetHandleByIndex(int(name))) if name.isdecimal() else _by_prefix(name)
    mode = _told(lambda: pynvml.nvmlDeviceGetMigMode(whole))
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return Handle(whole, whole)
    return _slice(_asked(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, 0)))  # CUDA shows a process one slice, the first


def _by_prefix(name: str) -> Any:
    """CUDA takes the beginning of a UUID, too."""
    for index in range(_asked(pynvml.nvmlDeviceGetCount)):
        handle = _asked(partial(pynvml.nvmlDeviceGetHandleByIndex, index))
        if _asked(partial(pynvml.nvmlDeviceGetUUID, handle)).startswith(name):
            return handle
    raise GpuGone(f"no GPU of this node is called {name}; see `nvidia-smi -L`")


def _slice(own: Any) -> Handle:
    whole = _asked(lambda: pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(own))
    return Handle(own, whole, _asked(lambda: pynvml.nvmlDeviceGetGpuInstanceId(own)))


class Activity:
    """Busy multiprocessors between two looks, from NVML's performance monitoring (GPM)."""

    def __init__(self, gpu: Handle) -> None:
        self._gpu = gpu
        support = _told(lambda: pynvml.nvmlGpmQueryDeviceSupport(gpu.whole))
        self._samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)] if support is not None and support.isSupportedDevice else []
        self._taken = 0

    def close(self) -> None:
        for sample in self._samples:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
        self._samples = []

    def read(self) -> float | None:
        if not self._samples or _told(self._sample) is None:
            return None
        self._samples.reverse()  # the newest is the second now
        self._taken += 1
        return _told(self._compare) if self._taken > 1 else None

    def _sample(self) -> Any:
        gpu, sample = self._gpu, self._samples[0]
        return pynvml.nvmlGpmSampleGet(gpu.whole, sample) if gpu.slice_of is None else pynvml.nvmlGpmMigSampleGet(gpu.whole, gpu.slice_of, sample)

    def _compare(self) -> float | None:
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
        asked.sample1, asked.sample2 = self._samples
        asked.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
        pynvml.nvmlGpmMetricsGet(asked)
        return asked.metrics[0].value / 100 if asked.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS else None


class Errors:
    """Critical errors that the driver reports of a GPU (XID), since this began to listen."""

    def __init__(self, gpu: Handle) -> None:
        self._gpu = gpu
        self._events = _asked(pynvml.nvmlEventSetCreate)
        kind = pynvml.nvmlEventTypeXidCriticalError
        self._supported = _told(lambda: pynvml.nvmlDeviceRegisterEvents(gpu.whole, kind, self._events) or True) is not None

    @property
    def supported(self) -> bool:
        return self._supported

    def close(self) -> None:
        with suppress(pynvml.NVMLError):  # the driver may be gone, and the set with it
            pynvml.nvmlEventSetFree(self._events)

    def new(self) -> list[int]:
        """Numbers of the errors since the last call; at once."""
        found: list[int] = []
        while self._supported:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT and error.value not in _UNTOLD:
                    raise _gone(error) from error
                break
            if self._gpu.slice_of is None or event.gpuInstanceId in (self._gpu.slice_of, _WHOLE_GPU):
                found.append(int(event.eventData))
        return found


def look(gpu: Handle, activity: Activity) -> Reading:
    """Raises `GpuGone`. A slice's power and NVLink are its whole GPU's: not told, since the slices beside it would tell them too."""
    used = _told(lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu.own))
    memory = _told(lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu.own))
    sensor = pynvml.NVML_TEMPERATURE_GPU
    power = _told(lambda: pynvml.nvmlDeviceGetPowerUsage(gpu.whole)) if gpu.slice_of is None else None
    sent, received = _nvlink(gpu.whole) if gpu.slice_of is None else (None, None)
    return Reading(
        utilization=None if used is None else used.gpu / 100,
        sm_activity=activity.read(),
        memory_used_bytes=None if memory is None else memory.used,
        memory_total_bytes=None if memory is None else memory.total,
        power_watts=None if power is None else power / 1000,
        temperature_celsius=_told(lambda: pynvml.nvmlDeviceGetTemperature(gpu.whole, sensor)),
        throttled=_throttled(gpu.whole),
        nvlink_sent_bytes=sent,
        nvlink_received_bytes=received,
    )


def _throttled(whole: Any) -> tuple[tuple[str, bool], ...] | None:
    reasons = _told(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(whole))
    if reasons is None:  # drivers before 535 know them by their old name
        reasons = _told(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(whole))
    return None if reasons is None else tuple((name, bool(reasons & bit)) for name, bit in REASONS.items())


def _nvlink(whole: Any) -> tuple[int | None, int | None]:
    """Bytes of data over all links, sent and received."""
    return _over_links(whole, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX), _over_links(whole, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)


def _over_links(whole: Any, field: int) -> int | None:
    """Some drivers add the links up, of others each link is asked for."""
    together = _fields(whole, [(field, _ALL_LINKS)])
    if together:
        return together[0] * 1024
    count = _fields(whole, [(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, 0)])
    each = _fields(whole, [(field, link) for link in range(count[0])]) if count else []
    return sum(each) * 1024 if each else None


def _fields(whole: Any, asked: list[tuple[int, int]]) -> list[int]:
    """Values of those fields, with their scope, that the driver tells."""
    fields = _told(lambda: pynvml.nvmlDeviceGetFieldValues(whole, asked))
    return [] if fields is None else [_number(field) for field in fields if field.nvmlReturn == pynvml.NVML_SUCCESS]


def _number(field: Any) -> int:
    return int(field.value.uiVal if field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT else field.value.ullVal)


def _told[T](ask: Callable[[], T]) -> T | None:
    """None where there is no answer to this question. Raises `GpuGone` where there is none to any."""
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value in _UNTOLD:
            return None
        raise _gone(error) from error


def _asked[T](ask: Callable[[], T]) -> T:
    """Raises `GpuGone`."""
    try:
        return ask()
    except pynvml.NVMLError as error:
        raise _gone(error) from error


def _gone(error: Any) -> GpuGone:
    remedy = _REMEDIES.get(error.value)
    return GpuGone(f"NVML says: {error}" + (f"; {remedy}" if remedy else ""))

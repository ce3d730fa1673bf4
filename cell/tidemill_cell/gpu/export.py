"""GPUs and RDMA ports as metrics. What a device does not tell has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemill.telemetry.catalogue import gpu
from tidemill.telemetry.metric import Metric
from tidemill.telemetry.registry import Registry
from tidemill_cell.gpu.reading import Reading
from tidemill_cell.gpu.watch import Seen, Watch
from tidemill_cell.rdma import Port, ports

type Series = dict[tuple[str, ...], float]

_READINGS: tuple[tuple[Metric, Callable[[Reading], float | None]], ...] = (
    (gpu.UTILIZATION, lambda reading: reading.utilization),
    (gpu.SM_ACTIVITY, lambda reading: reading.sm_activity),
    (gpu.MEMORY_USED, lambda reading: reading.memory_used_bytes),
    (gpu.MEMORY_SIZE, lambda reading: reading.memory_total_bytes),
    (gpu.POWER, lambda reading: reading.power_watts),
    (gpu.TEMPERATURE, lambda reading: reading.temperature_celsius),
    (gpu.NVLINK_SENT, lambda reading: reading.nvlink_sent_bytes),
    (gpu.NVLINK_RECEIVED, lambda reading: reading.nvlink_received_bytes),
)
_PORTS: tuple[tuple[Metric, Callable[[Port], float | None]], ...] = (
    (gpu.RDMA_ACTIVE, lambda port: port.active),
    (gpu.RDMA_SENT, lambda port: port.sent_bytes),
    (gpu.RDMA_RECEIVED, lambda port: port.received_bytes),
    (gpu.RDMA_ERRORS, lambda port: sum(count for _, count in port.errors) if port.errors else None),
)


def watch(registry: Registry, names: tuple[str, ...]) -> None:
    """Look at these GPUs from now until the process ends, and export what is seen of them and of the RDMA ports."""
    gpus = Watch(names)
    gpus.start()
    export(registry, gpus.seen)


def export(registry: Registry, seen: Callable[[], Iterable[Seen]], look_at_ports: Callable[[], Iterable[Port]] = ports) -> None:
    """`registry` has job, cell and rank as fixed labels."""

    def gpus(metric: Metric, told: Callable[[Seen], Series]) -> None:
        registry.read(metric, lambda: _together(told(one) for one in seen()))

    def gpu_reading(metric: Metric, value: Callable[[Reading], float | None]) -> None:
        gpus(metric, lambda one: _known((one.gpu,), None if one.reading is None else value(one.reading)))

    def port(metric: Metric, value: Callable[[Port], float | None]) -> None:
        registry.read(metric, lambda: _together(_known((one.device, one.port), value(one)) for one in look_at_ports()))

    gpus(gpu.LOST, lambda one: {(one.gpu,): float(one.reading is None)})
    gpus(gpu.XID_ERRORS, lambda one: {(one.gpu, str(xid)): float(count) for xid, count in one.errors or ()})
    gpus(gpu.THROTTLED, _throttled)
    for metric, of_gpu in _READINGS:
        gpu_reading(metric, of_gpu)
    for metric, of_port in _PORTS:
        port(metric, of_port)


def _throttled(one: Seen) -> Series:
    reasons = one.reading.throttled if one.reading is not None else None
    return {(one.gpu, reason): float(held) for reason, held in reasons or ()}


def _known(labels: tuple[str, ...], value: float | None) -> Series:
    return {} if value is None else {labels: float(value)}


def _together(parts: Iterable[Series]) -> Series | None:
    """None, so that not even the name is exported, where nothing is told."""
    together: Series = {}
    for part in parts:
        together |= part
    return together or None

"""Metrics of the GPUs and RDMA ports of a cell's node, from its agent. Absent, never zero, where the device or its driver does not tell."""

from __future__ import annotations

from tidemill.telemetry.metric import Kind, Metric

_GPU = ("job", "cell", "rank", "gpu")
_PORT = ("job", "cell", "rank", "device", "port")


def _counter(name: str, help: str, formula: str, labels: tuple[str, ...], unit: str = "", **values: tuple[str, ...]) -> Metric:
    return Metric(f"tidemill_{name}", Kind.COUNTER, help, formula, "cell", labels, unit, values=values)


def _gauge(name: str, help: str, formula: str, labels: tuple[str, ...] = _GPU, unit: str = "", **values: tuple[str, ...]) -> Metric:
    return Metric(f"tidemill_{name}", Kind.GAUGE, help, formula, "cell", labels, unit, values=values)


LOST = _gauge(
    "gpu_lost",
    "1 when a GPU that the cell was given does not answer: it fell off the bus, its driver is away, or a call has hung for 15 s; 0 otherwise. "
    "Nothing else is told of it then.",
    "max by (job, cell, rank, gpu) (tidemill_gpu_lost) == 1",
)
UTILIZATION = _gauge(
    "gpu_utilization_ratio",
    "Share of the driver's last sample period in which a kernel ran. 1 says nothing about how many multiprocessors it used. Of a slice (MIG) it is "
    "not told.",
    "avg by (job, cell) (tidemill_gpu_utilization_ratio)",
    unit="ratio",
)
SM_ACTIVITY = _gauge(
    "gpu_sm_activity_ratio",
    "Share of multiprocessors that were busy, averaged over 5 s. Hopper and later tell it.",
    "avg by (job, cell) (tidemill_gpu_sm_activity_ratio)",
    unit="ratio",
)
MEMORY_USED = _gauge("gpu_memory_used_bytes", "Memory in use.", "tidemill_gpu_memory_used_bytes / tidemill_gpu_memory_size_bytes", unit="bytes")
MEMORY_SIZE = _gauge(
    "gpu_memory_size_bytes", "Memory of the GPU, or of the slice.", "sum by (job, cell) (tidemill_gpu_memory_size_bytes)", unit="bytes"
)
POWER = _gauge("gpu_power_watts", "Power drawn. Of a slice it is not told.", "sum by (job, cell) (tidemill_gpu_power_watts)", unit="watts")
TEMPERATURE = _gauge("gpu_temperature_celsius", "Temperature of the GPU.", "max by (job, cell) (tidemill_gpu_temperature_celsius)", unit="celsius")
THROTTLED = _gauge(
    "gpu_throttled",
    "1 when the clocks are held down for this reason, 0 when not.",
    "max by (job, cell, gpu, reason) (tidemill_gpu_throttled) == 1",
    (*_GPU, "reason"),
    reason=("power_cap", "hardware_slowdown", "sync_boost", "software_thermal", "hardware_thermal", "power_brake"),
)
XID_ERRORS = _counter(
    "gpu_xid_errors_total",
    "XID errors that the driver has reported since the agent started. A number that has not happened has no series.",
    "increase(tidemill_gpu_xid_errors_total[1h]) > 0",
    (*_GPU, "xid"),
)
NVLINK_RECEIVED = _counter(
    "gpu_nvlink_received_bytes_total",
    "Data received over all NVLinks of the GPU. Of a slice it is not told.",
    "rate(tidemill_gpu_nvlink_received_bytes_total[5m])",
    _GPU,
    "bytes",
)
NVLINK_SENT = _counter(
    "gpu_nvlink_sent_bytes_total",
    "Data sent over all NVLinks of the GPU. Of a slice it is not told.",
    "rate(tidemill_gpu_nvlink_sent_bytes_total[5m])",
    _GPU,
    "bytes",
)

RDMA_ACTIVE = _gauge("rdma_active", "1 when the port's link is up, 0 when not.", "tidemill_rdma_active == 0", _PORT)
RDMA_RECEIVED = _counter(
    "rdma_received_bytes_total",
    "Data received at an RDMA port that the cell may use, by whomever.",
    "rate(tidemill_rdma_received_bytes_total[5m])",
    _PORT,
    "bytes",
)
RDMA_SENT = _counter(
    "rdma_sent_bytes_total",
    "Data sent from an RDMA port that the cell may use, by whomever.",
    "rate(tidemill_rdma_sent_bytes_total[5m])",
    _PORT,
    "bytes",
)
RDMA_ERRORS = _counter(
    "rdma_errors_total",
    "Errors that an RDMA port has counted: symbols, discards, overruns, links that recovered or went down.",
    "increase(tidemill_rdma_errors_total[1h]) > 0",
    _PORT,
)

ALL: tuple[Metric, ...] = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))

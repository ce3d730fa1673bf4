from __future__ import annotations

from tests.tidemill.telemetry.exported import OPENMETRICS, series, undeclared, value
from tidemill.telemetry.registry import Registry
from tidemill_cell.gpu.export import export
from tidemill_cell.gpu.reading import Reading
from tidemill_cell.gpu.watch import Seen
from tidemill_cell.rdma import Port

WHOLE = Reading(0.37, 0.25, 60, 80, 412.5, 61.0, (("power_cap", True), ("power_brake", False)), 3072, 5120)


def page(seen: tuple[Seen, ...], ports: tuple[Port, ...] = ()) -> str:
    registry = Registry("cell", job="mill", cell="cell-1", rank="0")
    export(registry, lambda: seen, lambda: ports)
    return registry.page(OPENMETRICS)[0].decode()


def test_without_gpus_and_ports_nothing_is_exported_not_even_a_zero() -> None:
    assert page(()) == "# EOF\n"


def test_everything_that_a_gpu_tells_is_exported_as_declared() -> None:
    told = page((Seen("0", WHOLE, "", ((79, 2),)), Seen("1", WHOLE, "", ())), (Port("mlx5_0", "1", True, 100, 40, (("symbol", 3), ("receive", 1))),))
    assert undeclared(told, "cell") == []
    found = series(told)
    first = {"job": "mill", "cell": "cell-1", "rank": "0", "gpu": "0"}
    assert value(found, "tidemill_gpu_utilization_ratio", **first) == 0.37
    assert value(found, "tidemill_gpu_power_watts", **first) == 412.5
    assert value(found, "tidemill_gpu_nvlink_received_bytes_total", **first) == 5120
    assert value(found, "tidemill_gpu_throttled", reason="power_cap", **first) == 1
    assert value(found, "tidemill_gpu_throttled", reason="power_brake", **first) == 0
    assert value(found, "tidemill_gpu_xid_errors_total", xid="79", **first) == 2
    assert value(found, "tidemill_rdma_sent_bytes_total", device="mlx5_0", port="1") == 100
    assert value(found, "tidemill_rdma_errors_total", device="mlx5_0") == 4
    assert {name for name, _ in found} >= {"tidemill_gpu_sm_activity_ratio", "tidemill_gpu_memory_size_bytes", "tidemill_gpu_temperature_celsius"}


def test_of_a_gpu_that_does_not_answer_only_that_is_told_and_the_errors_it_had() -> None:
    found = series(page((Seen("0", None, "lost", ((79, 1),)), Seen("1", Reading(utilization=0.5), "", None))))
    assert value(found, "tidemill_gpu_lost", gpu="0") == 1
    assert value(found, "tidemill_gpu_xid_errors_total", gpu="0", xid="79") == 1
    assert {dict(labels)["gpu"] for name, labels in found if name == "tidemill_gpu_utilization_ratio"} == {"1"}
    assert {name for name, labels in found if ("gpu", "1") in labels} == {"tidemill_gpu_lost", "tidemill_gpu_utilization_ratio"}

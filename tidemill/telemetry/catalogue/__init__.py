"""All metrics of the product, one module for each kind of process. Nothing is exported that is not declared here."""

from __future__ import annotations

from tidemill.telemetry.catalogue import cell, conductor, gateway, gpu, operator, trainer
from tidemill.telemetry.metric import Metric

PROCESSES = ("conductor", "gateway", "cell", "trainer", "operator")

ALL: tuple[Metric, ...] = (*conductor.ALL, *gateway.ALL, *cell.ALL, *gpu.ALL, *trainer.ALL, *operator.ALL)


def of(process: str) -> tuple[Metric, ...]:
    """What one kind of process exports."""
    return tuple(metric for metric in ALL if metric.process == process)

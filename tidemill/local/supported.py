"""What a manifest may ask for that one machine does not do: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.api.not_yet import not_yet
from tidemill.api.rljob import RLJobSpec
from tidemill.api.rules import Violation
from tidemill.local.programs import cramped, missing


def unsupported(spec: RLJobSpec, gpus: int) -> tuple[Violation, ...]:
    """One violation for each field; empty when this machine, with so many GPUs, can run the job. Fields that only shape pods are let pass."""
    return tuple(_violations(spec, gpus))


def _violations(spec: RLJobSpec, gpus: int) -> Iterator[Violation]:
    cells = spec.cells.count + spec.cells.standalone.replicas
    if (wanted := cells * spec.cells.gpus_per_node) > gpus:
        yield Violation(
            "spec.cells.gpusPerNode",
            f"is {spec.cells.gpus_per_node}, which makes {wanted} for {cells} cells, but this machine has {gpus or 'no'} GPUs; "
            f"lower it, to 0 for cells that use the CPU, or lower spec.cells.count",
        )
    if spec.cells.standalone.replicas and spec.cells.standalone.nodes_per_replica > 1:
        yield Violation(
            "spec.cells.standalone.nodesPerReplica",
            f"is {spec.cells.standalone.nodes_per_replica}, but a local cell is one process on one node; set it to 1",
        )
    yield from not_yet(spec)
    yield from missing(spec.harness)
    yield from cramped(spec)
    if spec.cells.nodes_per_cell > 1:
        yield Violation("spec.cells.nodesPerCell", f"is {spec.cells.nodes_per_cell}, but a local cell is one process on one node; set it to 1")
    if spec.cells.parallelism.rollout.tensor > 1 or spec.cells.parallelism.rollout.replicas > 1:
        yield Violation("spec.cells.parallelism.rollout", "a cell has one engine on one device here; set tensor and replicas to 1")
    training = spec.cells.parallelism.training
    if max(training.tensor, training.context, training.expert, training.pipeline) > 1:
        yield Violation("spec.cells.parallelism.training", "a cell has one trainer on one device here; set every kind of parallelism to 1")
    if spec.suspend:
        yield Violation("spec.suspend", "is true; set it to false, and stop a local job with Ctrl-C: --resume continues it")

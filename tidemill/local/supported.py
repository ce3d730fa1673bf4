"""What a manifest may ask for that one machine does not do: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.api import RLJob
from tidemill.api.rules import Violation


def unsupported(job: RLJob) -> tuple[Violation, ...]:
    """One violation for each field; empty when this machine can run the job. Fields that only shape pods are let pass."""
    return tuple(_violations(job))


def _violations(job: RLJob) -> Iterator[Violation]:
    spec = job.spec
    if spec.cells.nodes_per_cell > 1:
        yield Violation("spec.cells.nodesPerCell", f"is {spec.cells.nodes_per_cell}, but a local cell is one process on one node; set it to 1")
    if spec.gateway.replicas > 1:
        yield Violation("spec.gateway.replicas", f"is {spec.gateway.replicas}, but one machine runs one gateway; set it to 1")
    if spec.cells.parallelism.rollout.tensor > 1 or spec.cells.parallelism.rollout.replicas > 1:
        yield Violation("spec.cells.parallelism.rollout", "a cell has one engine on one device here; set tensor and replicas to 1")
    training = spec.cells.parallelism.training
    if max(training.tensor, training.context, training.expert, training.pipeline) > 1:
        yield Violation("spec.cells.parallelism.training", "a cell has one trainer on one device here; set every kind of parallelism to 1")
    if spec.init_from.checkpoint:
        yield Violation(
            "spec.initFrom.checkpoint", "starting from another job's checkpoint is not possible yet; use model.source path:DIR with its folder"
        )
    if spec.logging.tensorboard:
        yield Violation("spec.logging.tensorboard", "is not possible yet; set it to false, metrics.jsonl and report.html hold the figures")
    if spec.suspend:
        yield Violation("spec.suspend", "is true; set it to false, and stop a local job with Ctrl-C: --resume continues it")

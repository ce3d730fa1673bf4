"""Rules between fields, which types cannot say. Each violation names the field, its value, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidemill.api.rljob import RLJobSpec
from tidemill.policy.decide import Mode
from tidemill.policy.staleness import default_bound


@dataclass(frozen=True, slots=True)
class Violation:
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


Rule = Callable[[RLJobSpec], Iterator[Violation]]


def violations(spec: RLJobSpec) -> tuple[Violation, ...]:
    """Every rule that `spec` breaks, all at once."""
    return tuple(v for rule in _RULES for v in rule(spec))


def _somebody_serves_while_the_core_trains(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.schedule.mode is Mode.ELASTIC and spec.cells.count == 1 and spec.cells.standalone.replicas == 0:
        yield Violation(
            "spec.cells.count",
            "is 1, but Elastic needs a core and at least one satellite or a standalone pool; set count to 2 or schedule.mode to Colocate",
        )


def _async_leaves_a_cell_in_rollout(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.schedule.mode is Mode.ASYNC and spec.schedule.async_training_cells >= spec.cells.count and spec.cells.standalone.replicas == 0:
        yield Violation(
            "spec.schedule.asyncTrainingCells",
            f"is {spec.schedule.async_training_cells} of {spec.cells.count} cells, so none would serve; "
            "lower it, raise cells.count, or add cells.standalone.replicas",
        )


def _staleness_bound_can_be_kept(spec: RLJobSpec) -> Iterator[Violation]:
    bound, schedule = spec.schedule.max_staleness, spec.schedule
    least = default_bound(schedule.prefetch_steps, schedule.steps_per_burst)
    if bound is not None and bound < least:
        yield Violation(
            "spec.schedule.maxStaleness",
            f"is {bound}, but with prefetchSteps {schedule.prefetch_steps} and stepsPerBurst {schedule.steps_per_burst} prefetched groups are "
            f"{least} publications old when they are trained; raise it to {least} or lower prefetchSteps",
        )


def _an_answer_fits_the_context(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.sampling.max_tokens >= spec.model.max_length:
        yield Violation(
            "spec.sampling.maxTokens",
            f"is {spec.sampling.max_tokens}, which leaves no room for a prompt in model.maxLength {spec.model.max_length}; "
            "lower it or raise maxLength",
        )


def _time_outs_are_in_order(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.timeouts.group_seconds < spec.timeouts.execution_seconds:
        yield Violation(
            "spec.timeouts.groupSeconds",
            f"is {spec.timeouts.group_seconds:g}, less than executionSeconds {spec.timeouts.execution_seconds:g}; a group cannot end before "
            "one of its executions may: raise it",
        )


def _the_clip_range_holds_one(spec: RLJobSpec) -> Iterator[Violation]:
    low, high = spec.algorithm.sequence_clip
    if not low <= 1.0 <= high:
        yield Violation("spec.algorithm.sequenceClip", f"is [{low:g}, {high:g}], which does not contain 1; use for instance [0.995, 1.005]")


def _a_generic_harness_has_a_command(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.harness.preset == "generic" and not spec.harness.command:
        yield Violation(
            "spec.harness.command", "is empty, but preset generic needs the program to start; give it as a list, e.g. [python3, agent.py]"
        )
    if spec.harness.preset != "generic" and spec.harness.command:
        yield Violation("spec.harness.command", f"is set, but preset {spec.harness.preset} brings its own command; remove it or use preset generic")


def _cpu_cells_have_no_device_parallelism(spec: RLJobSpec) -> Iterator[Violation]:
    training, rollout = spec.cells.parallelism.training, spec.cells.parallelism.rollout
    ranks = training.tensor * training.context * training.expert * training.pipeline
    for path, value in (("training", ranks), ("rollout", rollout.tensor * rollout.replicas)):
        gpus = spec.cells.nodes_per_cell * max(1, spec.cells.gpus_per_node)
        if value > gpus:
            yield Violation(
                f"spec.cells.parallelism.{path}",
                f"needs {value} GPUs, but a cell has {gpus} (nodesPerCell x gpusPerNode); lower it or give the cell more GPUs",
            )


_RULES: tuple[Rule, ...] = (
    _somebody_serves_while_the_core_trains,
    _async_leaves_a_cell_in_rollout,
    _staleness_bound_can_be_kept,
    _an_answer_fits_the_context,
    _time_outs_are_in_order,
    _the_clip_range_holds_one,
    _a_generic_harness_has_a_command,
    _cpu_cells_have_no_device_parallelism,
)

"""Rules between fields, which types cannot say. Each violation names the field, its value, why, and what to do.

`cel.py` says the same to an API server where CEL can; a test compares the two.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tidemill.api.gpucell import GPUCellSpec
from tidemill.api.model import amount
from tidemill.api.rljob import HARNESS_PRESETS, INSTALLED_PRESETS, LEAST_SANDBOX_MEMORY, LEAST_TEMPERATURE, RLJobSpec
from tidemill.policy.decide import Mode
from tidemill.policy.staleness import default_bound
from tidemill.wire.cell import CellKind, Role


@dataclass(frozen=True, slots=True)
class Violation:
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


Rule = Callable[[RLJobSpec], Iterable[Violation]]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def violations(spec: RLJobSpec, also: Iterable[Rule] = ()) -> tuple[Violation, ...]:
    """Every rule that `spec` breaks, all at once."""
    return tuple(v for rule in (*_RULES, *also) for v in rule(spec))


def violations_of_part(part: RLJobSpec, also: Iterable[Rule] = ()) -> tuple[Violation, ...]:
    """The same of a spec in which fields are missing (see `partial.py`): a rule ends where it reads one."""
    found: list[Violation] = []
    for rule in (*_RULES, *also):
        with contextlib.suppress(AttributeError):
            found.extend(rule(part))
    return tuple(found)


def cell_violations(spec: GPUCellSpec) -> tuple[Violation, ...]:
    """Every rule that a cell's `spec` breaks."""
    found = []
    if spec.kind is CellKind.CORE and spec.ordinal:
        found.append(Violation("spec.kind", f"is Core, but the core is the cell with ordinal 0 and this is {spec.ordinal}; set kind to Satellite"))
    if spec.kind is CellKind.STANDALONE and Role.TRAINING in (spec.role, spec.pin):
        found.append(Violation("spec.kind", "is Standalone, and a standalone cell only ever rolls out; leave role Rollout and remove pin"))
    return tuple(found)


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


def _logits_stay_finite(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.sampling.temperature < LEAST_TEMPERATURE:
        yield Violation(
            "spec.sampling.temperature",
            f"is {spec.sampling.temperature:g}, by which logits are divided; below {LEAST_TEMPERATURE} nothing is left to chance: raise it",
        )


def _held_out_tasks_are_others(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.evaluation.source == spec.tasks.source:
        yield Violation(
            "spec.evaluation.source", "is spec.tasks.source, so the held-out tasks would be trained; give another folder, or leave it out"
        )


def _a_sandbox_has_memory(spec: RLJobSpec) -> Iterator[Violation]:
    if amount(spec.sandbox.resources.memory) < amount(LEAST_SANDBOX_MEMORY):
        yield Violation(
            "spec.sandbox.resources.memory",
            f"is {spec.sandbox.resources.memory}, but a shell and a Python need {LEAST_SANDBOX_MEMORY}; raise it, for instance to 512Mi",
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


def _the_preset_is_known(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.harness.preset not in HARNESS_PRESETS:
        yield Violation(
            "spec.harness.preset", f"is {spec.harness.preset!r}; there are {', '.join(HARNESS_PRESETS)}: generic starts any program by its command"
        )


def _a_version_is_of_a_program_that_is_installed(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.harness.version and spec.harness.preset in HARNESS_PRESETS and spec.harness.preset not in INSTALLED_PRESETS:
        yield Violation(
            "spec.harness.version",
            f"is set, but only presets {', '.join(INSTALLED_PRESETS)} are installed in a version; remove it or use another preset",
        )


def _variables_have_names(spec: RLJobSpec) -> Iterator[Violation]:
    """An API server cannot say it: it has no bound on the length of a map's keys, and so on what a rule about them costs."""
    wrong = [name for name in spec.harness.env if not _VARIABLE.fullmatch(name)]
    if wrong:
        yield Violation("spec.harness.env", f"has {wrong[0]!r}, which no program can read; use letters, digits and underscores, no digit first")


def _nothing_ends_in_the_middle(spec: RLJobSpec) -> Iterator[Violation]:
    """No program can be given a NUL."""
    if any("\0" in value for value in spec.harness.env.values()):
        yield Violation("spec.harness.env", "has a value with a NUL character, which no program can be given; remove it")
    if any("\0" in word for word in spec.harness.command):
        yield Violation("spec.harness.command", "has a NUL character, which no program can be given; remove it")


def _a_generic_harness_has_a_command(spec: RLJobSpec) -> Iterator[Violation]:
    if spec.harness.preset == "generic" and not (spec.harness.command and spec.harness.command[0]):
        yield Violation(
            "spec.harness.command", "is empty, but preset generic needs the program to start; give it as a list, e.g. [python3, agent.py]"
        )
    if spec.harness.preset in HARNESS_PRESETS and spec.harness.preset != "generic" and spec.harness.command:
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
    _logits_stay_finite,
    _held_out_tasks_are_others,
    _a_sandbox_has_memory,
    _an_answer_fits_the_context,
    _time_outs_are_in_order,
    _the_clip_range_holds_one,
    _the_preset_is_known,
    _a_version_is_of_a_program_that_is_installed,
    _variables_have_names,
    _nothing_ends_in_the_middle,
    _a_generic_harness_has_a_command,
    _cpu_cells_have_no_device_parallelism,
)

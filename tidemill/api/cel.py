"""The rules that an API server checks itself, in CEL: those of `rules.py`, and what may not change in an object that exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.api.rljob import HARNESS_PRESETS, INSTALLED_PRESETS, LEAST_SANDBOX_MEMORY, LEAST_TEMPERATURE
from tidemill.api.structural import Schema


@dataclass(frozen=True, slots=True)
class CelRule:
    """`expression` about `self`, the value at `at`. `field` is the one to change, from there."""

    at: str
    expression: str
    message: str
    field: str = ""

    def as_schema(self) -> Schema:
        made = {"rule": self.expression, "message": self.message}
        if self.field:
            made["fieldPath"] = self.field
        return made


_PRESETS = list(HARNESS_PRESETS)  # written as CEL writes it
_GPUS = "self.nodesPerCell * (self.gpusPerNode > 1 ? self.gpusPerNode : 1)"
_GIVE_GPUS = "a cell has nodesPerCell x gpusPerNode GPUs and this needs more; lower it or give the cell more GPUs"

# Where a section has a default, its rules stand in spec: the server checks the bare `{}` of a default against what stands in the section itself.
RLJOB_RULES = (
    CelRule(
        "",
        "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",
        "metadata.name must start with a letter and have at most 40 lower-case letters, digits and dashes, because pods and services are named "
        "after it; choose another name",
    ),
    CelRule(
        "spec",
        "self.schedule.mode != 'Elastic' || self.cells.count > 1 || self.cells.standalone.replicas > 0",
        "Elastic needs a core and at least one satellite or a standalone pool; set cells.count to 2 or schedule.mode to Colocate",
        ".cells.count",
    ),
    CelRule(
        "spec",
        "self.schedule.mode != 'Async' || self.schedule.asyncTrainingCells < self.cells.count || self.cells.standalone.replicas > 0",
        "asyncTrainingCells takes every cell, so none would serve; lower it, raise cells.count, or add cells.standalone.replicas",
        ".schedule.asyncTrainingCells",
    ),
    CelRule(
        "spec.schedule",
        "!has(self.maxStaleness) || self.maxStaleness >= (self.prefetchSteps + self.stepsPerBurst - 1) / self.stepsPerBurst",
        "maxStaleness is below prefetchSteps / stepsPerBurst, rounded up, the age of prefetched groups when trained; raise it or lower prefetchSteps",
        ".maxStaleness",
    ),
    CelRule(
        "spec.sampling",
        f"self.temperature >= {LEAST_TEMPERATURE}",
        f"logits are divided by the temperature, and below {LEAST_TEMPERATURE} nothing is left to chance; raise it",
        ".temperature",
    ),
    CelRule(
        "spec",
        "self.evaluation.source != self.tasks.source",
        "evaluation.source is tasks.source, so the held-out tasks would be trained; give another folder, or leave it out",
        ".evaluation.source",
    ),
    CelRule(
        "spec",
        f"quantity(string(self.sandbox.resources.memory)).compareTo(quantity('{LEAST_SANDBOX_MEMORY}')) >= 0",
        f"sandbox.resources.memory is below {LEAST_SANDBOX_MEMORY}, which a shell and a Python need; raise it, for instance to 512Mi",
        ".sandbox.resources.memory",
    ),
    CelRule(
        "spec",
        "self.sampling.maxTokens < self.model.maxLength",
        "maxTokens leaves no room for a prompt in model.maxLength; lower it or raise maxLength",
        ".sampling.maxTokens",
    ),
    CelRule(
        "spec",
        "self.timeouts.groupSeconds >= self.timeouts.executionSeconds",
        "groupSeconds is less than executionSeconds; a group cannot end before one of its executions may: raise it",
        ".timeouts.groupSeconds",
    ),
    CelRule(
        "spec",
        "self.algorithm.sequenceClip[0] <= 1.0 && self.algorithm.sequenceClip[1] >= 1.0",
        "sequenceClip does not contain 1; use for instance [0.995, 1.005]",
        ".algorithm.sequenceClip",
    ),
    CelRule(
        "spec",
        f"self.harness.preset in {_PRESETS}",
        f"there is no such preset; there are {', '.join(HARNESS_PRESETS)}: generic starts any program by its command",
        ".harness.preset",
    ),
    CelRule(
        "spec",
        "self.harness.preset != 'generic' || (size(self.harness.command) > 0 && self.harness.command[0] != '')",
        "command is empty, but preset generic needs the program to start; give it as a list, e.g. [python3, agent.py]",
        ".harness.command",
    ),
    CelRule(
        "spec",
        f"size(self.harness.command) == 0 || self.harness.preset == 'generic' || !(self.harness.preset in {_PRESETS})",
        "command is set, but only preset generic takes one; remove it or use preset generic",
        ".harness.command",
    ),
    CelRule(
        "spec",
        f"self.harness.version == '' || self.harness.preset in {list(INSTALLED_PRESETS)} || !(self.harness.preset in {_PRESETS})",
        f"version is set, but only presets {', '.join(INSTALLED_PRESETS)} are installed in a version; remove it or use another preset",
        ".harness.version",
    ),
    CelRule(
        "spec",
        "self.harness.command.all(word, !word.contains('\\u0000'))",
        "harness.command has a NUL character, which no program can be given; remove it",
        ".harness.command",
    ),
    CelRule(
        "spec.cells",
        "self.parallelism.training.tensor * self.parallelism.training.context * self.parallelism.training.expert * "
        f"self.parallelism.training.pipeline <= {_GPUS}",
        f"parallelism.training: {_GIVE_GPUS}",
        ".parallelism.training",
    ),
    CelRule(
        "spec.cells",
        f"self.parallelism.rollout.tensor * self.parallelism.rollout.replicas <= {_GPUS}",
        f"parallelism.rollout: {_GIVE_GPUS}",
        ".parallelism.rollout",
    ),
    # About a change, not a state: the operator must always be able to write how far the job has come.
    CelRule(
        "",
        "self.spec.schedule.steps == oldSelf.spec.schedule.steps || !has(self.status) || !has(self.status.step) "
        "|| self.spec.schedule.steps >= self.status.step",
        "schedule.steps is less than what the job has done; set it to status.step to end the job now, or higher",
        ".spec.schedule.steps",
    ),
)

GPUCELL_RULES = (
    CelRule(
        "",
        "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
        "metadata.name must start with a letter and have at most 63 lower-case letters, digits and dashes; cells are named by the operator",
    ),
    CelRule(
        "spec.epoch",
        "self >= oldSelf",
        "epoch is the number of the grant and only grows; ask for a flip with pin, or take the conductor's next epoch",
    ),
    CelRule(
        "spec",
        "self.role == oldSelf.role || self.epoch > oldSelf.epoch",
        "role changes only with a larger epoch, by a grant of the conductor; to keep the cell in one role set pin",
        ".role",
    ),
    CelRule("spec", "self.kind != 'Core' || self.ordinal == 0", "the core is the cell with ordinal 0; set kind to Satellite", ".kind"),
    CelRule(
        "spec",
        "self.kind != 'Standalone' || (self.role == 'Rollout' && (!has(self.pin) || self.pin == 'Rollout'))",
        "a standalone cell only ever rolls out; leave role Rollout and remove pin",
        ".kind",
    ),
)

# What of a spec may change while its job runs. A whole section, or one field.
MUTABLE = frozenset(
    {
        "spec.schedule.steps",
        "spec.schedule.extensions",
        "spec.timeouts",
        "spec.suspend",
        "spec.cells.standalone.replicas",
        "spec.ttlSecondsAfterFinished",
        "spec.activeDeadlineSeconds",
    }
)
CELL_MUTABLE = frozenset({"spec.role", "spec.epoch", "spec.pin", "spec.cordon"})

_AGAIN = "create a new RLJob, whose initFrom can start from this one's checkpoint"
_REMEDIES = {
    "spec.cells.count": f"change cells.standalone.replicas, which may change while the job runs, or {_AGAIN}",
    "spec.schedule": f"of the schedule only steps and extensions may change while the job runs; {_AGAIN}",
    "spec.evaluation": "create a new RLJob to measure other tasks",
    "spec.checkpoints.storage": f"enlarge the volume claim itself, or {_AGAIN}",
    "spec.conductor.storage": f"enlarge the volume claim itself, or {_AGAIN}",
    "spec.gateway.storage": f"enlarge the volume claim itself, or {_AGAIN}",
}


def immutability(schema: Schema, mutable: frozenset[str], remedies: dict[str, str] | None = None) -> Iterator[CelRule]:
    """One rule for every part of `spec` that may not change, as high up as nothing below may change."""
    yield from _immutable("spec", schema["properties"]["spec"], mutable, _REMEDIES if remedies is None else remedies)


def _immutable(path: str, schema: Schema, mutable: frozenset[str], remedies: dict[str, str]) -> Iterator[CelRule]:
    inner = schema.get("properties", {})
    always = {*schema.get("required", ()), *(name for name, field in inner.items() if "default" in field)}
    for name, field in inner.items():
        below = f"{path}.{name}"
        if below in mutable:
            continue
        if any(other.startswith(f"{below}.") for other in mutable):
            yield from _immutable(below, field, mutable, remedies)
            continue
        nearest = max((p for p in remedies if below == p or below.startswith(f"{p}.")), key=len, default="")
        message = f"{below} is immutable; {remedies.get(nearest, _AGAIN)}"
        if name in always:
            yield CelRule(below, "self == oldSelf", message)
        else:  # a rule on the field itself would not see it come or go
            same = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
            yield CelRule(path, same, message, f".{name}")


def add(schema: Schema, rules: tuple[CelRule, ...]) -> None:
    """Put every rule where it belongs."""
    for rule in rules:
        target = schema
        for part in rule.at.split(".") if rule.at else ():
            target = target["properties"][part]
        target.setdefault("x-kubernetes-validations", []).append(rule.as_schema())

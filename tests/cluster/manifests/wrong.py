"""Manifests that are wrong, hostile or both, and what is said about each.

The server refuses most of them. What it lets pass, because no schema can say it, the models refuse: the operator reports those as Invalid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tests.cluster.manifests.documents import REMOVED, nested

MEGABYTE = "x" * 2**20


@dataclass(frozen=True)
class Wrong:
    """`says` is a part of the message each: the field first, then what helps."""

    name: str
    changes: dict[str, Any]
    says: tuple[str, ...]
    by: Literal["server", "models"] = "server"
    kind: Literal["RLJob", "GPUCell"] = "RLJob"
    before: dict[str, Any] = field(default_factory=dict)  # of an update: what the object was made with

    def __str__(self) -> str:
        return self.name


def _too(name: str, path: str, value: Any, said: str) -> Wrong:
    return Wrong(name, {path: value}, (path, said))


TYPOS = (
    Wrong("a misspelt section", {"spec.schedul": {}}, ('unknown field "spec.schedul"',)),
    Wrong("a misspelt field", {"spec.schedule.stepz": 3}, ('unknown field "spec.schedule.stepz"',)),
    Wrong("a field in the wrong case", {"spec.Cells": {}}, ('unknown field "spec.Cells"',)),
    Wrong("a field of another section", {"spec.capacity": 8}, ('unknown field "spec.capacity"',)),
    Wrong("a field beside a template's spec", {"spec.cells.template": {"sepc": {}}}, ('unknown field "spec.cells.template.sepc"',)),
    Wrong("a field beside spec", {"specs": {}}, ('unknown field "specs"',)),
    Wrong("a snake-case field", {"spec.cells.nodes_per_cell": 1}, ('unknown field "spec.cells.nodes_per_cell"',)),
    Wrong("another version", {"apiVersion": "tidemill.dev/v9"}, ('version "v9"',)),
    Wrong("another kind", {"kind": "Job"}, ("kind", "RLJob")),
)

TYPES = (
    _too("a count in quotes", "spec.cells.count", "3", "must be of type integer"),
    _too("half a cell", "spec.cells.count", 3.5, "must be of type integer"),
    _too("a count that is true", "spec.cells.count", True, "must be of type integer"),
    _too("yes for a boolean", "spec.schedule.streaming", "yes", "must be of type boolean"),
    _too("one for a boolean", "spec.suspend", 1, "must be of type boolean"),
    _too("a rate in quotes", "spec.algorithm.learningRate", "1e-5", "must be of type number"),
    _too("a command as one line", "spec.harness.command", "python3 agent.py", "must be of type array"),
    Wrong(
        "a command of numbers", {"spec.harness.preset": "generic", "spec.harness.command": [1, 2]}, ("spec.harness.command", "must be of type string")
    ),
    _too("a number in the environment", "spec.harness.env", {"LEVEL": 3}, "must be of type string"),
    _too("the environment as a list", "spec.harness.env", [{"name": "A", "value": "b"}], "unknown field"),
    _too("a list for a section", "spec.cells", [], "must be of type object"),
    _too("a word for a section", "spec.schedule", "Elastic", "must be of type object"),
    _too("a word for a template", "spec.cells.template", "gpu", "must be of type object"),
    _too("a boolean for CPUs", "spec.cells.resources.cpu", True, "must be of type integer"),
    _too("a fraction that is no text", "spec.cells.resources.cpu", 0.5, "must be of type integer,string"),
    _too("a unit that is none", "spec.cells.resources.memory", "6GB", "Ki|Mi|Gi"),
    _too("less than no memory", "spec.cells.resources.memory", -1, "greater than or equal to 0"),
    _too("a clip range of one", "spec.algorithm.sequenceClip", [0.9], "at least 2 items"),
    _too("a clip range of three", "spec.algorithm.sequenceClip", [0.9, 1, 1.1], "at most 2 items"),
    Wrong("no spec", {"spec": REMOVED}, ("spec", "Required value")),
    Wrong("a null spec", {"spec": None}, ("spec", "Required value")),
    Wrong("a null section", {"spec.cells": None}, ("spec.cells", "Required value")),
    Wrong("a null field", {"spec.sampling.maxTokens": None}, ("spec.sampling.maxTokens", "Required value")),
    Wrong("an empty section", {"spec.schedule": {}}, ("spec.schedule.groupsPerStep", "Required value")),
)

RANGES = (
    _too("no cell", "spec.cells.count", 0, "greater than or equal to 1"),
    _too("a million cells", "spec.cells.count", 1_000_000, "less than or equal to 1024"),
    _too("a million standalone cells", "spec.cells.standalone", {"replicas": 1_000_000}, "less than or equal to 1024"),
    _too("a group of one", "spec.schedule.rolloutsPerGroup", 1, "greater than or equal to 2"),
    _too("no step", "spec.schedule.steps", 0, "greater than or equal to 1"),
    _too("more steps than a number holds", "spec.schedule.steps", 10**30, "spec.schedule.steps"),
    _too("a negative number of steps ahead", "spec.schedule.prefetchSteps", -1, "greater than or equal to 0"),
    _too("no temperature", "spec.sampling.temperature", 0, "greater than 0"),
    _too("a temperature of a furnace", "spec.sampling.temperature", 1000, "less than or equal to 10"),
    _too("more than all of the probability", "spec.sampling.topP", 1.5, "less than or equal to 1"),
    _too("one checkpoint", "spec.checkpoints.keep", 1, "greater than or equal to 2"),
    _too("a checkpoint now and then", "spec.checkpoints.everySteps", 5, "less than or equal to 1"),
    _too("a deadline of nothing", "spec.activeDeadlineSeconds", 0, "greater than or equal to 1"),
    _too("a deletion in the past", "spec.ttlSecondsAfterFinished", -1, "greater than or equal to 0"),
    _too("a time-out of nothing", "spec.timeouts.callSeconds", 1e-9, "greater than or equal to 1"),
    _too("a learning rate of 1e300", "spec.algorithm.learningRate", 1e300, "less than or equal to 1"),
    _too("a correlation of two", "spec.simulation.groupCorrelation", 2, "less than or equal to 1"),
)

WORDS = (
    _too("a mode in lower case", "spec.schedule.mode", "elastic", '"Elastic", "Colocate", "Async"'),
    _too("a number format that is none", "spec.model.dtype", "int8", '"float32", "bfloat16", "float16"'),
    _too("an algorithm that is none", "spec.algorithm.name", "PPO", '"GSPO"'),
    _too("a network that is no name", "spec.cells.network.profile", "InfiniBand!", "[a-z0-9]"),
    _too("an access mode that is none", "spec.checkpoints.storage.accessMode", "ReadOnlyMany", '"ReadWriteMany"'),
    _too("an extension that is none", "spec.schedule.extensions", ["Overclock"], "supported values"),
    _too("a model from nowhere", "spec.model.source", "gpt2", "hf|path|pvc|package|tiny"),
    _too("tasks from nowhere", "spec.tasks.source", "tasks", "path:"),
    _too("a second line", "spec.tasks.source", "path:/tasks\nname: x", "path:"),
    _too("a preset that is none", "spec.harness.preset", "raect", "there are react, claude-code, codex, mini-swe-agent"),
    Wrong("a name in capitals", {"metadata.name": "Tiny_Job"}, ("metadata.name", "lower case")),
    Wrong("a name in Greek", {"metadata.name": "παλίρροια"}, ("metadata.name", "lower case")),
    Wrong("a name of 41 characters", {"metadata.name": "j" * 41}, ("metadata.name", "at most 40", "choose another name")),
    Wrong("a name that starts with a digit", {"metadata.name": "1job"}, ("metadata.name", "start with a letter")),
)

SIZES = (
    _too("a model of a megabyte", "spec.model.source", "tiny:" + MEGABYTE, "may not be more than 1024"),
    _too("a preset of a megabyte", "spec.harness.preset", MEGABYTE, "may not be more than 253"),
    _too("a variable of a megabyte", "spec.harness.env", {"A": MEGABYTE}, "may not be more than 4096"),
    _too("a thousand arguments", "spec.harness.command", ["x"] * 1000, "at most 256 items"),
    _too("a thousand variables", "spec.harness.env", {f"V{n}": "" for n in range(1000)}, "at most 64"),
    _too("a quantity of digits", "spec.cells.resources.cpu", "9" * 500, "may not be more than 32"),
    Wrong("a template of four megabytes", {"spec.cells.template": {"spec": dict.fromkeys("abcd", MEGABYTE)}}, ("too large",)),
)

RULES = (
    Wrong("Elastic with one cell", {"spec.cells.count": 1}, ("spec.cells.count", "set cells.count to 2 or schedule.mode to Colocate")),
    Wrong(
        "Async that trains everywhere",
        {"spec.schedule.mode": "Async", "spec.schedule.asyncTrainingCells": 3},
        ("spec.schedule.asyncTrainingCells", "lower it, raise cells.count"),
    ),
    Wrong("a bound that cannot be kept", {"spec.schedule.maxStaleness": 0}, ("spec.schedule.maxStaleness", "raise it or lower prefetchSteps")),
    Wrong("answers that fill the context", {"spec.sampling.maxTokens": 2048}, ("spec.sampling.maxTokens", "lower it or raise maxLength")),
    Wrong("a temperature of next to nothing", {"spec.sampling.temperature": 1e-300}, ("spec.sampling.temperature", "raise it")),
    Wrong("held-out tasks that are trained", {"spec.evaluation.source": "path:/tasks"}, ("spec.evaluation.source", "give another folder")),
    Wrong(
        "a sandbox without memory",
        {"spec.sandbox.resources.memory": "0"},
        ("spec.sandbox.resources.memory", "raise it, for instance to 512Mi"),
    ),
    Wrong("a sandbox with a byte of memory", {"spec.sandbox.resources.memory": 1}, ("spec.sandbox.resources.memory", "raise it")),
    Wrong(
        "a command that ends in the middle",
        {"spec.harness.preset": "generic", "spec.harness.command": ["python3", "a\0b"]},
        ("spec.harness.command", "NUL"),
    ),
    Wrong("groups that end before executions", {"spec.timeouts.groupSeconds": 10}, ("spec.timeouts.groupSeconds", "raise it")),
    Wrong("a clip range without one", {"spec.algorithm.sequenceClip": [1.1, 1.2]}, ("spec.algorithm.sequenceClip", "[0.995, 1.005]")),
    Wrong("generic without a command", {"spec.harness.preset": "generic"}, ("spec.harness.command", "give it as a list")),
    Wrong(
        "generic without a program",
        {"spec.harness.preset": "generic", "spec.harness.command": ["", "x"]},
        ("spec.harness.command", "give it as a list"),
    ),
    Wrong("a version of what is not installed", {"spec.harness.version": "1.2.3"}, ("spec.harness.version", "remove it or use another preset")),
    _too("a version that moves", "spec.harness.version", "latest", "should match"),
    Wrong("a command that nothing starts", {"spec.harness.command": ["x"]}, ("spec.harness.command", "remove it or use preset generic")),
    Wrong("a trainer larger than its cell", {"spec.cells.parallelism.training.tensor": 8}, ("spec.cells.parallelism.training", "more GPUs")),
    Wrong("engines larger than their cell", {"spec.cells.parallelism.rollout.replicas": 8}, ("spec.cells.parallelism.rollout", "more GPUs")),
    Wrong(
        "a parallelism that overflows",
        {f"spec.cells.parallelism.training.{kind}": 1024 for kind in ("tensor", "context", "expert", "pipeline")},
        ("spec.cells.parallelism.training", "more GPUs"),
    ),
)

MODELS = (
    Wrong(
        "a variable that no program can read", {"spec.harness.env": {"A=B": "c"}}, ("spec.harness.env", "letters, digits and underscores"), "models"
    ),
    Wrong(
        "a variable's name of 10,000 characters", {"spec.harness.env": {"A" * 10_000: "c"}}, ("spec.harness.env", "at most 253 characters"), "models"
    ),
    Wrong("a template's spec that is a word", {"spec.cells.template": {"spec": "gpu"}}, ("spec.cells.template", "expected a mapping"), "models"),
    Wrong("a template of 300 levels", {"spec.cells.template": nested(300)}, ("nested too deeply",), "models"),
)

CELLS = (
    Wrong("a cell that idles", {"spec.role": "Idle"}, ("spec.role", '"Rollout", "Training"'), kind="GPUCell"),
    Wrong("a negative epoch", {"spec.epoch": -1}, ("spec.epoch", "greater than or equal to 0"), kind="GPUCell"),
    Wrong("an epoch beyond exact numbers", {"spec.epoch": 2**60}, ("spec.epoch", "less than or equal to"), kind="GPUCell"),
    Wrong("a cell of no job", {"spec.job": REMOVED}, ("spec.job", "Required value"), kind="GPUCell"),
    Wrong("a core that is not the first", {"spec.ordinal": 2}, ("spec.kind", "set kind to Satellite"), kind="GPUCell"),
    Wrong("a standalone cell that trains", {"spec.kind": "Standalone", "spec.pin": "Training"}, ("spec.kind", "remove pin"), kind="GPUCell"),
    Wrong("a pin that is misspelt", {"spec.pinned": "Rollout"}, ('unknown field "spec.pinned"',), kind="GPUCell"),
    Wrong("a cell's name with dots", {"metadata.name": "job.cell.0"}, ("metadata.name", "letters, digits and dashes"), kind="GPUCell"),
)

CREATED = (*TYPOS, *TYPES, *RANGES, *WORDS, *SIZES, *RULES, *MODELS, *CELLS)


def _fixed(path: str, value: Any, remedy: str = "create a new RLJob", **before: Any) -> Wrong:
    return Wrong(f"another {path}", {path: value}, (path, "is immutable", remedy), before=before)


CHANGED = (
    _fixed("spec.model", {"source": "tiny:qwen3", "maxLength": 4096}),
    _fixed("spec.cells.count", 4, "change cells.standalone.replicas"),
    _fixed("spec.cells.capacity", 9),
    _fixed("spec.cells.nodesPerCell", 2),
    _fixed("spec.cells.gpusPerNode", 8),
    _fixed("spec.cells.parallelism", {"training": {"tensor": 2}}, **{"spec.cells.gpusPerNode": 8}),
    _fixed("spec.cells.standalone.nodesPerReplica", 2),
    _fixed("spec.cells.spareNodes", 1),
    _fixed("spec.cells.network", {"profile": "dra"}),
    _fixed("spec.cells.resources", {"cpu": 2, "memory": "1Gi"}),
    _fixed("spec.cells.template", {"spec": {"nodeSelector": {"gpu": "h200"}}}),
    _fixed("spec.cells.template", {"metadata": {"labels": {"a": "b"}}}, **{"spec.cells.template": {"spec": {"nodeSelector": {"a": "b"}}}}),
    _fixed("spec.cells.template", {"spec": {"tolerations": []}}, **{"spec.cells.template": {"spec": {"nodeSelector": {"a": "b"}}}}),
    _fixed("spec.schedule.mode", "Colocate", "only steps and extensions"),
    _fixed("spec.schedule.groupsPerStep", 3),
    _fixed("spec.schedule.prefetchSteps", 2),
    _fixed("spec.schedule.maxStaleness", 5),
    _fixed("spec.schedule.maxStaleness", REMOVED, **{"spec.schedule.maxStaleness": 5}),
    _fixed("spec.schedule.maxStaleness", 4, **{"spec.schedule.maxStaleness": 5}),
    _fixed("spec.algorithm", {"learningRate": 1e-3}),
    _fixed("spec.trajectories", {"maxPerExecution": 6}),
    _fixed("spec.sampling", {"maxTokens": 512}),
    _fixed("spec.harness", {"env": {"LEVEL": "2"}}),
    Wrong(
        "another variable of the harness",
        {"spec.harness.env": {"LEVELS": "1"}},
        ("spec.harness", "is immutable", "create a new RLJob"),
        before={"spec.harness.env": {"LEVEL": "1"}},
    ),
    _fixed("spec.tasks", {"source": "path:/others"}),
    _fixed("spec.evaluation", {"source": "path:/held-out"}, "to measure other tasks"),
    _fixed("spec.sandbox", {"resources": {"cpu": 4}}),
    _fixed("spec.rollout", {"kvOnPublish": "Recompute"}),
    _fixed("spec.gateway", {"replicas": 2}),
    _fixed("spec.conductor", {"storage": "20Gi"}),
    _fixed("spec.checkpoints", {"keep": 3}),
    _fixed("spec.initFrom", {"checkpoint": "/elsewhere"}),
    _fixed("spec.logging", {"tensorboard": False}),
    Wrong(
        "time-outs that a rule forbids",
        {"spec.timeouts": {"executionSeconds": 99999}},
        ("spec.timeouts.groupSeconds", "raise it"),
        before={"spec.suspend": True},
    ),
    Wrong("a role without an epoch", {"spec.role": "Training"}, ("spec.role", "larger epoch"), kind="GPUCell", before={"spec.epoch": 4}),
    Wrong("an epoch that falls", {"spec.epoch": 3}, ("spec.epoch", "only grows"), kind="GPUCell", before={"spec.epoch": 4}),
    Wrong(
        "a role with an old epoch", {"spec.role": "Training", "spec.epoch": 3}, ("spec.epoch", "only grows"), kind="GPUCell", before={"spec.epoch": 4}
    ),
    Wrong(
        "a cell of another job", {"spec.job": "other"}, ("spec.job", "is immutable", "made by the operator"), kind="GPUCell", before={"spec.epoch": 4}
    ),
    Wrong("a cell in another place", {"spec.ordinal": 1}, ("spec.ordinal", "is immutable"), kind="GPUCell", before={"spec.kind": "Satellite"}),
    Wrong("a cell of another kind", {"spec.kind": "Satellite"}, ("spec.kind", "is immutable"), kind="GPUCell", before={"spec.epoch": 4}),
)

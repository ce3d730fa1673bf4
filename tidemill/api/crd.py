"""The CustomResourceDefinitions, from the models. `tidemill crds` writes them to `crds/`; a test holds the files to this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from tidemill.api.cel import CELL_MUTABLE, GPUCELL_RULES, MUTABLE, RLJOB_RULES, CelRule, add, immutability
from tidemill.api.gpucell import GPUCell, GPUCellSpec, GPUCellStatus
from tidemill.api.model import GROUP, VERSION
from tidemill.api.rljob import RLJob, RLJobSpec
from tidemill.api.status import RLJobStatus
from tidemill.api.structural import Schema, structural


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a definition needs beside its models."""

    name: str
    short: str
    model: type[BaseModel]
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    rules: tuple[CelRule, ...]
    mutable: frozenset[str]
    remedies: dict[str, str] | None = None

    @property
    def plural(self) -> str:
        return f"{self.name.lower()}s"

    @property
    def file(self) -> str:
        return f"{self.plural}.{GROUP}.yaml"


_AGE = Column("Age", ".metadata.creationTimestamp", "date")
_OPERATORS = "cells are made by the operator, one for each of spec.cells of the RLJob"

KINDS = (
    Kind(
        "RLJob",
        "rlj",
        RLJob,
        RLJobSpec,
        RLJobStatus,
        (
            Column("Phase", ".status.phase"),
            Column("Step", ".status.progress"),
            Column("Water", ".status.water"),
            Column("Limited-By", ".status.limitedBy"),
            Column("Rollout", ".status.cellsInRollout", "integer"),
            Column("Training", ".status.cellsInTraining", "integer"),
            Column("Score", ".status.scores.last", "number"),
            Column("ETA", ".status.eta"),
            _AGE,
        ),
        RLJOB_RULES,
        MUTABLE,
    ),
    Kind(
        "GPUCell",
        "gcell",
        GPUCell,
        GPUCellSpec,
        GPUCellStatus,
        (
            Column("Job", ".spec.job"),
            Column("Role", ".status.role"),
            Column("Epoch", ".status.epoch", "integer"),
            Column("State", ".status.phase"),
            Column("Version", ".status.policyVersion", "integer"),
            Column("Node", ".status.node"),
            Column("Last-Flip", ".status.lastFlipText"),
            _AGE,
        ),
        GPUCELL_RULES,
        CELL_MUTABLE,
        {"spec": _OPERATORS},
    ),
)


def crd(kind: Kind) -> dict[str, Any]:
    """The whole definition."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": c.name, "type": c.type, "jsonPath": c.path} for c in kind.columns],
        "schema": {"openAPIV3Schema": _schema(kind)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "singular": kind.name.lower(),
                "plural": kind.plural,
                "shortNames": [kind.short],
                "categories": ["tidemill"],
            },
            "versions": [version],
        },
    }


def as_yaml(kind: Kind) -> str:
    """The text of the file."""
    text = yaml.dump(crd(kind), Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=150)
    return f"# Generated from tidemill/api by `tidemill crds`: change the models, not this.\n{text}"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True  # an anchor would tie fields together that have nothing to do with each other


def _schema(kind: Kind) -> Schema:
    whole = structural(kind.model, defaults=False)
    described = {name: field.description for name, field in kind.model.model_fields.items()}
    properties = {
        "apiVersion": {"type": "string", "description": described["api_version"]},
        "kind": {"type": "string", "description": described["kind"]},
        "metadata": {"type": "object"},
        "spec": {**structural(kind.spec, defaults=True), "description": described["spec"]},
        "status": {**structural(kind.status, defaults=False), "description": described["status"]},
    }
    schema: Schema = {"description": whole["description"], "type": "object", "required": ["spec"], "properties": properties}
    add(schema, (*kind.rules, *immutability(schema, kind.mutable, kind.remedies)))
    return schema

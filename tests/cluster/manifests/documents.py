"""Small valid objects, and how a test changes them."""

from __future__ import annotations

import copy
from typing import Any

Document = dict[str, Any]

REMOVED = object()
"""As a value: the field goes."""


def rljob(name: str = "job", changes: dict[str, Any] | None = None) -> Document:
    """The least RLJob that is valid, with `changes` by dotted path."""
    document = {
        "apiVersion": "tidemill.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "tiny:qwen3", "maxLength": 2048},
            "cells": {"count": 3, "capacity": 8},
            "schedule": {"groupsPerStep": 2, "rolloutsPerGroup": 4, "stepsPerBurst": 2, "prefetchSteps": 1, "steps": 12},
            "sampling": {"maxTokens": 256},
            "tasks": {"source": "path:/tasks"},
        },
    }
    return changed(document, changes or {})


def gpucell(name: str = "job-cell-0", changes: dict[str, Any] | None = None) -> Document:
    document = {
        "apiVersion": "tidemill.dev/v1alpha1",
        "kind": "GPUCell",
        "metadata": {"name": name},
        "spec": {"job": "job", "ordinal": 0, "kind": "Core", "role": "Rollout", "epoch": 4},
    }
    return changed(document, changes or {})


def changed(document: Document, changes: dict[str, Any]) -> Document:
    made = copy.deepcopy(document)
    for path, value in changes.items():
        *parents, last = path.split(".")
        target = made
        for parent in parents:
            target = target.setdefault(parent, {})
        if value is REMOVED:
            target.pop(last, None)
        else:
            target[last] = value
    return made


def nested(levels: int) -> Document:
    made: Document = {}
    for _ in range(levels):
        made = {"spec": made}
    return made

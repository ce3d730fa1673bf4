"""Objects as an API server keeps them: a job of three cells in its second burst."""

from __future__ import annotations

from typing import Any

TIME = "2026-03-01T10:00:00Z"
MANIFEST: dict[str, Any] = {
    "apiVersion": "tidemill.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "sail"},
    "spec": {
        "model": {"source": "tiny:qwen3", "maxLength": 2048},
        "cells": {"count": 2, "capacity": 8, "standalone": {"replicas": 1}},
        "schedule": {"groupsPerStep": 2, "rolloutsPerGroup": 2, "steps": 12},
        "sampling": {"maxTokens": 64},
        "tasks": {"source": "path:/tasks"},
    },
}


def condition(kind: str, status: str, reason: str = "AsExpected", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": 1, "lastTransitionTime": TIME}


FLIP = {"to": "Training", "epoch": 4, "seconds": 8.5, "phases": {"drain": 2.25, "sleep": 6.25}, "callsInFlight": 3, "time": TIME}
STATUS: dict[str, Any] = {
    "phase": "Running",
    "observedGeneration": 1,
    "step": 3,
    "progress": "3/12",
    "burst": 2,
    "policyVersion": 1,
    "waterlevel": 7,
    "capacity": 16,
    "water": "7/16",
    "limitedBy": "Training",
    "cellsInRollout": 2,
    "cellsInTraining": 1,
    "scores": {"last": 0.53, "best": 0.6},
    "eta": "3h20m",
    "staleness": 1,
    "term": 2,
    "flips": [{**FLIP, "cell": "cell-0"}],
    "lastFlipSeconds": 8.5,
    "startTime": TIME,
    "conditions": [
        condition("Invalid", "False", "Valid"),
        condition("Placed", "True", "Placed"),
        condition("PodsHealthy", "False", "OOMKilled", "pod sail-cell-1-0: OOMKilled; raise spec.cells.resources.memory"),
        condition("Ready", "False", "OOMKilled", "pod sail-cell-1-0: OOMKilled; raise spec.cells.resources.memory"),
    ],
}


def job(name: str = "sail", namespace: str = "sea", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "generation": 1, "managedFields": []}
    return {**MANIFEST, "metadata": meta, "spec": {**MANIFEST["spec"], **spec}, "status": STATUS if status is None else status}


def cell(name: str, status: dict[str, Any], job: str = "sail", **spec: Any) -> dict[str, Any]:
    kind = "Core" if name == "cell-0" else "Standalone" if name.startswith("standalone") else "Satellite"
    return {
        "apiVersion": "tidemill.dev/v1alpha1",
        "kind": "GPUCell",
        "metadata": {"name": f"{job}-{name}", "generation": 1, "labels": {"tidemill.dev/job": job}},
        "spec": {"job": job, "ordinal": int(name[-1]), "kind": kind, "role": "Rollout", "epoch": 1, **spec},
        "status": {
            "phase": "Ready",
            "epoch": 1,
            "role": "Rollout",
            "pods": [f"{job}-{name}-0"],
            "policyVersion": 1,
            "observedGeneration": 1,
            **status,
        },
    }


def cells(job: str = "sail") -> list[dict[str, Any]]:
    return [
        cell("standalone-0", {}, job),
        cell("cell-1", {"node": "gpu-7"}, job, epoch=3, pin="Rollout"),
        cell("cell-0", {"role": "Training", "epoch": 4, "node": "gpu-3 +1", "lastFlip": FLIP}, job, role="Training", epoch=4),
    ]

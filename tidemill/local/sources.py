"""Folders that a manifest names, made absolute: the manifest is copied into the work folder, where relative ones would lead elsewhere."""

from __future__ import annotations

from pathlib import Path

from tidemill.api import RLJob


def with_absolute_sources(job: RLJob, base: Path) -> RLJob:
    """`path:` sources are relative to `base`, the manifest's folder."""

    def absolute(source: str) -> str:
        return f"path:{(base / source.removeprefix('path:')).resolve()}" if source.startswith("path:") else source

    spec = job.spec
    replaced = spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"source": absolute(spec.model.source)}),
            "tasks": spec.tasks.model_copy(update={"source": absolute(spec.tasks.source)}),
            "evaluation": spec.evaluation.model_copy(update={"source": absolute(spec.evaluation.source)}),
        }
    )
    return job.model_copy(update={"spec": replaced})

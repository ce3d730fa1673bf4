"""Folders that a manifest names: made absolute, because the manifest is copied into the work folder, and looked for before anything starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tidemill.api import RLJob
from tidemill.api.rljob import RLJobSpec
from tidemill.api.rules import Rule, Violation

_PATH = "path:"


def base_of(manifest: Path) -> Path:
    """The folder that relative sources start from: where the manifest lies, whatever link leads to it."""
    try:
        return Path(os.path.realpath(manifest)).parent
    except ValueError:  # a NUL in its name: there is no such file, which whoever reads it will say
        return Path()


def with_absolute_sources(job: RLJob, base: Path) -> RLJob:
    """`path:` sources are relative to `base`, the manifest's folder."""

    def absolute(source: str) -> str:
        return f"{_PATH}{(base / source.removeprefix(_PATH)).resolve()}" if source.startswith(_PATH) else source

    spec = job.spec
    replaced = spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"source": absolute(spec.model.source)}),
            "tasks": spec.tasks.model_copy(update={"source": absolute(spec.tasks.source)}),
            "evaluation": spec.evaluation.model_copy(update={"source": absolute(spec.evaluation.source)}),
        }
    )
    return job.model_copy(update={"spec": replaced})


def source_rules(base: Path, *, on_a_cluster: bool = False) -> tuple[Rule, ...]:
    """That `path:` sources lead to folders, seen from `base`. On a cluster an absolute one is a folder in a pod, of which nothing is known here."""

    def look(path: str, source_of: Callable[[RLJobSpec], str]) -> Rule:
        return lambda spec: _missing(path, source_of(spec), base, on_a_cluster)

    return (
        look("spec.model.source", lambda spec: spec.model.source),
        look("spec.tasks.source", lambda spec: spec.tasks.source),
        look("spec.evaluation.source", lambda spec: spec.evaluation.source),
        lambda spec: _the_same(spec, base),
    )


def _missing(path: str, source: str, base: Path, on_a_cluster: bool) -> Iterator[Violation]:
    named = Path(source.removeprefix(_PATH))
    folder = base / named
    if not source.startswith(_PATH) or folder.is_dir() or (on_a_cluster and named.is_absolute()):
        return
    what = "that is not a folder" if folder.exists() else "there is no such folder"
    yield Violation(path, f"is {source!r}, but {what}: {str(folder)!r}; a relative one starts from the manifest's folder")


def _the_same(spec: RLJobSpec, base: Path) -> Iterator[Violation]:
    """As `rules.py` says it of two names."""
    if not spec.evaluation.source or spec.evaluation.source == spec.tasks.source:
        return
    tasks, held_out = (base / section.source.removeprefix(_PATH) for section in (spec.tasks, spec.evaluation))
    if held_out.is_dir() and held_out.resolve() == tasks.resolve():
        yield Violation(
            "spec.evaluation.source", "is the folder of spec.tasks.source, so the held-out tasks would be trained; give another, or leave it out"
        )

"""Folders that a manifest names are looked for before anything starts."""

from pathlib import Path

import pytest

from tests.tidemill.api.test_loading import document
from tidemill.api import parse_rljob
from tidemill.local.sources import base_of, source_rules, with_absolute_sources


def found(base: Path, on_a_cluster: bool = False, **changes: object) -> list[str]:
    spec = parse_rljob(document(**changes)).spec
    return [violation.path for rule in source_rules(base, on_a_cluster=on_a_cluster) for violation in rule(spec)]


def test_what_is_there_is_right(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "heldout").mkdir()
    assert found(tmp_path, tasks__source="path:tasks", evaluation={"source": "path:heldout"}) == []


@pytest.mark.parametrize("place", ["nowhere", "file", "/nowhere/tasks", "a\0b"])
def test_what_is_no_folder_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    sources = {"model__source": f"path:{place}", "tasks__source": f"path:{place}", "evaluation": {"source": f"path:{place}/other"}}
    assert found(tmp_path, **sources) == ["spec.model.source", "spec.tasks.source", "spec.evaluation.source"]


def test_of_a_folder_in_a_pod_nothing_is_known_here(tmp_path: Path) -> None:
    assert found(tmp_path, on_a_cluster=True, tasks__source="path:/nowhere/tasks") == []
    assert found(tmp_path, on_a_cluster=True, tasks__source="path:nowhere") == ["spec.tasks.source"]


def test_held_out_tasks_under_another_name_of_the_same_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "link").symlink_to("tasks")
    for other in ("./tasks", "link", str(tmp_path / "tasks")):
        assert found(tmp_path, tasks__source="path:tasks", evaluation={"source": f"path:{other}"}) == ["spec.evaluation.source"]


def test_relative_sources_start_where_the_manifest_lies_whatever_link_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "job.yaml").touch()
    (tmp_path / "link.yaml").symlink_to("real/job.yaml")
    assert base_of(tmp_path / "link.yaml") == tmp_path / "real"
    moved = with_absolute_sources(parse_rljob(document(tasks__source="path:tasks")), tmp_path / "real")
    assert moved.spec.tasks.source == f"path:{tmp_path}/real/tasks"

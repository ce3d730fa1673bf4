"""The definitions are what the models say, and in a form that every API server takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemill.api.cel import CELL_MUTABLE, MUTABLE, immutability
from tidemill.api.crd import KINDS, Kind, as_yaml, crd
from tidemill.api.rljob import HARNESS_PRESETS, RLJobSpec
from tidemill.api.structural import structural
from tidemill.cli.main import main
from tidemill_rollout.harness.presets import PRESETS

FOLDER = Path(__file__).parents[3] / "crds"
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def schema(kind: Kind) -> dict[str, Any]:
    made: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return made


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below, its items and its values."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if part in node:
            yield from nodes(node[part], f"{path}[]")


@kinds
def test_the_files_have_not_drifted(kind: Kind) -> None:
    assert (FOLDER / kind.file).read_text() == as_yaml(kind), "write them anew: .venv/bin/tidemill crds"


@kinds
def test_a_definition_can_be_applied_by_every_client(kind: Kind) -> None:
    text = as_yaml(kind)
    assert len(text.encode()) < 50_000
    assert yaml.safe_load(text) == crd(kind)
    assert "$ref" not in text
    assert "&id" not in text


@kinds
def test_everything_has_a_bound_so_that_rules_have_a_price(kind: Kind) -> None:
    bound = {"string": "maxLength", "array": "maxItems"}
    for path, node in nodes(schema(kind)["properties"]["spec"], "spec"):
        if "enum" not in node and node.get("type") in bound:
            assert bound[node["type"]] in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("type") == "integer" and "enum" not in node:
            assert {"minimum", "maximum"} <= node.keys(), path


@kinds
def test_a_status_that_nobody_wrote_stays_absent(kind: Kind) -> None:
    assert not [path for path, node in nodes(schema(kind)["properties"]["status"]) if "default" in node]


def test_a_section_of_the_spec_that_is_left_out_is_filled_in() -> None:
    spec = schema(KINDS[0])["properties"]["spec"]
    required = {"model", "cells", "schedule", "sampling", "tasks"}
    assert set(spec["required"]) == required
    optional = {"activeDeadlineSeconds", "ttlSecondsAfterFinished"}  # absent means none
    assert {name for name, field in spec["properties"].items() if "default" not in field} == required | optional


def test_every_field_either_may_change_or_is_said_not_to() -> None:
    whole = {"properties": {"spec": structural(RLJobSpec, defaults=True)}}
    guarded = {f"{rule.at}{rule.field}" for rule in immutability(whole, MUTABLE)}
    for path, node in nodes(whole["properties"]["spec"], "spec"):
        above = {path[:end] for end in range(len(path) + 1) if path[end : end + 1] in (".", "")}
        if "properties" not in node and "[]" not in path:
            assert bool(above & guarded) != bool(above & MUTABLE), path


def test_rules_about_cells_name_fields_that_are_there() -> None:
    spec = schema(KINDS[1])["properties"]["spec"]["properties"]
    assert {path.removeprefix("spec.") for path in CELL_MUTABLE} < spec.keys()
    assert all("x-kubernetes-validations" in spec[name] for name in ("job", "ordinal", "kind", "epoch"))


def test_the_presets_that_a_server_lets_pass_are_those_that_there_are() -> None:
    assert set(HARNESS_PRESETS) == set(PRESETS)


def test_the_command_writes_the_definitions_and_finds_drift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crds", "--out", str(tmp_path), "--check"]) == 1
    assert main(["crds", "--out", str(tmp_path)]) == 0
    assert main(["crds", "--out", str(tmp_path), "--check"]) == 0
    written = tmp_path / "rljobs.tidemill.dev.yaml"
    written.write_text(written.read_text().replace("Elastic", "Plastic"))
    assert main(["crds", "--out", str(tmp_path), "--check"]) == 1
    assert "rljobs.tidemill.dev.yaml is not what the models say" in capsys.readouterr().err

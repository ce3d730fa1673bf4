"""What can be said of the images without building them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.helm.chart import CHART, ROOT

FILES = sorted((ROOT / "images").glob("*.Dockerfile"))
LOCKS = {
    "operator": ["operator"],
    "conductor": ["rollout"],
    "cell-cpu": ["rollout", "trainer", "cell", "cpu"],
    "cell-cuda": ["rollout", "trainer", "cell", "cuda"],
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What an image imports when it starts, and what it must do without.
MODULES = {
    "operator": (["tidemill_operator.__main__"], ["torch", "vllm", "nixl", "matplotlib", "numpy"]),
    "conductor": (
        [
            "tidemill_rollout.conductor.__main__",
            "tidemill_rollout.gateway.__main__",
            "tidemill_rollout.model.__main__",
            "tidemill_rollout.sandbox.pods",
        ],
        ["torch", "vllm", "nixl", "matplotlib", "harbor"],
    ),
}


def versions(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", lock.read_text(), flags=re.MULTILINE))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s<>=!~;\[]", line, maxsplit=1)[0].lower() for line in requirements if line and not line.startswith("#")}


def excluded(image: str) -> set[str]:
    file = ROOT / "requirements" / f"{image}.excludes"
    return names(file.read_text().splitlines()) if file.exists() else set()


def test_every_image_that_the_chart_names_has_a_dockerfile_and_none_is_left_over() -> None:
    images = yaml.safe_load((CHART / "values.yaml").read_text())["images"]
    assert {image.split(":")[0] for image in images.values()} == {f"tidemill/{file.name.removesuffix('.Dockerfile')}" for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_image_takes_its_base_as_an_argument_and_runs_as_nobody_in_particular(file: Path) -> None:
    text = file.read_text()
    assert re.search(r"^ARG BASE=python:3\.12-slim$", text, flags=re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)) == {"${BASE}"}
    assert re.findall(r"^USER (\S+)", text, flags=re.MULTILINE) == ["10001:10001"]
    assert all(f"org.opencontainers.image.{label}=" in text for label in ("title", "description", "licenses", "version", "revision"))
    assert all("--require-hashes" in line or "/wheel/" in line for line in text.splitlines() if "pip" in line and " install " in line)


@pytest.mark.parametrize("image", LOCKS)
def test_an_images_lock_holds_what_is_declared_for_it_in_the_versions_that_are_tested(image: str) -> None:
    lock = versions(ROOT / "requirements" / f"{image}.lock")
    extras = [line for extra in LOCKS[image] for line in PROJECT["optional-dependencies"][extra]]
    missing = names([*PROJECT["dependencies"], *extras]) - excluded(image) - set(lock)
    assert not missing, f"run `make lock`: requirements/{image}.lock lacks {sorted(missing)}"
    assert not excluded(image) & set(lock)
    if image != "cell-cuda":  # another engine, which asks for other versions of its own
        tested = versions(ROOT / "requirements" / "cpu.lock")
        assert not {name: version for name, version in lock.items() if tested.get(name, version) != version}


@pytest.mark.parametrize("image", MODULES)
def test_what_an_image_starts_needs_nothing_that_it_lacks(image: str) -> None:
    modules, lacking = MODULES[image]
    program = f"import sys; sys.modules.update(dict.fromkeys({lacking})); import {', '.join(modules)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""The images are built as a user builds them, and what is in them runs: small, unprivileged, and without what they do not need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.node.images import NAMES, ROOT, Container, container, image
from tidemill.api import load_rljob

CAN_BUILD = os.geteuid() == 0 and shutil.which("buildah") and shutil.which("debootstrap")
pytestmark = [pytest.mark.timeout(1800), pytest.mark.skipif(not CAN_BUILD, reason="needs root, buildah and debootstrap")]

LARGEST_MB = {"operator": 450, "conductor": 750, "sandbox": 260}
"""Uncompressed, of which the test's base is 224."""

PROGRAMS = {
    "operator": [["python", "-m", "tidemill_operator", "--help"]],
    "conductor": [
        ["tidemill", "--help"],
        *(["python", "-m", f"tidemill_rollout.{module}", "--help"] for module in ("conductor", "gateway", "model")),
    ],
    "sandbox": [["python", "-c", "import tidemill_rollout.sandbox.prepare, tidemill_rollout.sandbox.enter; print('usage: none')"]],
}


@pytest.fixture(scope="module", params=NAMES)
def built(request: pytest.FixtureRequest) -> Iterator[Container]:
    with container(image(str(request.param))) as made:
        yield made


def test_its_programs_start(built: Container) -> None:
    for command in PROGRAMS[built.image.name]:
        assert "usage" in built.run(*command).lower()


def test_it_runs_as_nobody_in_particular_and_says_what_it_is(built: Container) -> None:
    assert built.image.configuration["User"] == "10001:10001"
    assert built.run("id", "-u").strip() == "10001"
    labels = built.image.configuration["Labels"]
    assert labels["org.opencontainers.image.title"] == f"tidemill-{built.image.name}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.version"]
    assert labels["org.opencontainers.image.revision"]


def test_it_has_no_installer_no_engine_and_no_trace_of_how_it_was_built(built: Container) -> None:
    lacking = "import importlib.util as u; print([m for m in ('pip', 'torch', 'vllm', 'nixl', 'matplotlib') if u.find_spec(m)])"
    assert built.run("python", "-c", lacking).strip() == "[]"
    assert built.run("sh", "-c", "ls /build /wheel /src /etc/pip.conf /run/secrets/ca.pem 2>/dev/null || true") == ""
    assert not [entry for entry in built.image.configuration["Env"] if "PIP" in entry]


def test_its_size_is_as_documented(built: Container) -> None:
    megabytes = int(built.run("sh", "-c", "du -sxm / 2>/dev/null | cut -f1"))
    assert megabytes <= LARGEST_MB[built.image.name]
    assert 0 < built.image.archive.stat().st_size < megabytes * 2**20


@pytest.mark.parametrize("built", ["conductor"], indirect=True)
def test_the_tasks_of_the_first_job_are_in_the_conductors_image(built: Container) -> None:
    spec = load_rljob(ROOT / "examples/kubernetes/quickstart.yaml").spec
    for source in (spec.tasks.source, spec.evaluation.source):
        folder = source.removeprefix("path:")
        there = built.run("sh", "-c", f"cd {folder} && ls -d */task.toml").split()
        assert there == sorted(f"{task.parent.name}/task.toml" for task in (ROOT / "examples/quickstart" / Path(folder).name).glob("*/task.toml"))
        assert there

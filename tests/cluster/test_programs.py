"""Programs are found where somebody put them, and a build leaves a whole program or none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import building, programs

ROOT = Path(__file__).parents[2]
MODULE = programs.MODULES[0]  # etcd
# Stands in for Go: writes half a program, waits for a file, writes the other half.
GO = """#!/bin/sh
case $1 in
  version) echo "go version go1.26.0 linux/amd64" ;;
  build)
    while [ "$1" != -o ]; do shift; done
    printf half > "$2"
    while [ ! -e "$0.go-on" ]; do sleep 0.05; done
    printf '\\tgo.etcd.io/etcd/server/v3\\tv3.6.16\\t' > "$2"; chmod +x "$2" ;;
esac
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(GO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return program


def builder() -> subprocess.Popen[str]:
    code = "from tests.cluster.programs import programs; print(programs(('etcd',))['etcd'])"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_half_a_program() -> None:
    deadline = time.monotonic() + 20
    while not any(file.read_text() == "half" for file in programs.cache().glob(".build-*/etcd")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_build_leaves_no_half_program_and_the_next_one_starts_afresh(go: Path) -> None:
    killed = builder()
    wait_for_half_a_program()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (programs.cache() / "etcd").exists()
    Path(f"{go}.go-on").touch()
    program, said = builder().communicate(timeout=60)
    assert Path(program.strip()) == programs.cache() / "etcd"
    assert "built etcd 3.6.16 in" in said
    assert not list(programs.cache().glob(".build-*"))


def test_of_two_builders_one_builds(go: Path) -> None:
    first = builder()
    wait_for_half_a_program()
    second = builder()
    assert second.stderr
    assert "waiting for another" in second.stderr.readline()
    Path(f"{go}.go-on").touch()
    _, said_first = first.communicate(timeout=60)
    program, said_second = second.communicate(timeout=60)
    assert "built etcd" in said_first
    assert "buil" not in said_second
    assert Path(program.strip()) == programs.cache() / "etcd"


def test_a_program_of_another_version_is_not_taken(go: Path) -> None:
    program = programs.cache() / "etcd"
    program.parent.mkdir(parents=True)
    for content, taken in ((b"\tgo.etcd.io/etcd/server/v3\tv3.6.16\t", True), (b"\tgo.etcd.io/etcd/server/v3\tv3.6.15\t", False), (b"", False)):
        program.write_bytes(content)
        assert programs.is_of(program, MODULE) is taken


def test_what_lies_in_the_folder_of_envtest_is_taken_as_it_is(go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    (tmp_path / "etcd").touch()
    assert programs.programs(("etcd",))["etcd"] == str(tmp_path / "etcd")


def test_without_go_it_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(building, "INSTALLED_GO", tmp_path / "go")
    with pytest.raises(building.BuildFailed, match=r"(?s)needs Go 1\.21.*KUBEBUILDER_ASSETS"):
        programs.programs(("etcd",))

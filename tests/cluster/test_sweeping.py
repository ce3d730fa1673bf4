"""A sweep removes what a dead run left, and nothing of one that lives."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.run_folder import RunFolder
from tests.cluster.sweeping import LOCK, MARK, PREFIX, marked, sweep

ROOT = Path(__file__).parents[2]


def left_folder(base: Path) -> tuple[Path, subprocess.Popen[bytes]]:
    """As after a SIGKILL of a run and its reaper: files, and a program that goes on."""
    folder = base / f"{PREFIX}{os.urandom(3).hex()}"
    (folder / "etcd").mkdir(parents=True)
    (folder / LOCK).touch()
    return folder, subprocess.Popen(["sleep", "600"], env={MARK: folder.name})


def test_a_dead_runs_programs_and_folder_go(tmp_path: Path) -> None:
    folder, program = left_folder(tmp_path)
    sweep(folder)
    assert program.wait(10) < 0
    assert not folder.exists()


def test_a_living_run_is_left_alone(tmp_path: Path) -> None:
    folder, program = left_folder(tmp_path)
    try:
        with (folder / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sweep(folder)
        assert marked(folder.name) == {program.pid}
        assert (folder / "etcd").exists()
    finally:
        program.kill()
        program.wait()


def test_the_reaper_waits_for_the_lock_of_an_owner_that_is_dying(tmp_path: Path) -> None:
    folder, program = left_folder(tmp_path)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reaper = subprocess.Popen([sys.executable, "-m", "tests.cluster.sweeping", str(folder)], cwd=ROOT, stdin=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            reaper.wait(0.5)
    assert reaper.wait(10) == 0
    assert program.wait(10) < 0
    assert not folder.exists()


def test_a_folder_that_is_not_a_runs_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}other").mkdir()
    sweep(tmp_path / f"{PREFIX}other")
    assert (tmp_path / f"{PREFIX}other").exists()


def test_a_new_run_sweeps_what_others_left_and_then_removes_itself() -> None:
    first = RunFolder()
    folder, program = left_folder(first.path.parent)
    second = RunFolder()
    assert program.wait(10) < 0
    assert not folder.exists()
    assert first.path.exists()
    for run in (first, second):
        run.remove()
        assert not run.path.exists()

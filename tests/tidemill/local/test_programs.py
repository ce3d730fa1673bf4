"""Agent programs are installed once, whole or not at all; what is missing is said before anything starts. npm is a script here."""

import os
import threading
from pathlib import Path

import pytest

from tests.rollout.jobs import job
from tidemill.api.rljob import INSTALLED_PRESETS, HarnessSpec
from tidemill.local.programs import PROGRAMS, ProgramUnavailable, cramped, executable, folder, install, missing

NPM = """#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
into=$2; for wanted; do :; done
echo "$wanted" >> {log}
{body}
"""
WORKS = 'mkdir -p "$into/node_modules/.bin"; touch "$into/node_modules/.bin/codex"'
CODEX = HarnessSpec(preset="codex", version="1.2.3")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only programs are those that a test puts into bin/, and a shell."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for name in ("mkdir", "touch", "sleep"):
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    return tmp_path


def put_npm(machine: Path, body: str = WORKS) -> None:
    for name, text in {"npm": NPM.format(log=machine / "log", body=body), "node": "#!/bin/sh\n"}.items():
        (machine / "bin" / name).write_text(text)
        (machine / "bin" / name).chmod(0o755)


def installed(machine: Path) -> list[str]:
    log = machine / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_the_presets_that_take_a_version_are_those_that_are_installed() -> None:
    assert set(PROGRAMS) == set(INSTALLED_PRESETS)


def test_a_program_is_installed_once_in_the_wanted_version(machine: Path) -> None:
    put_npm(machine)
    said: list[str] = []
    install(CODEX, said.append)
    install(CODEX, said.append)
    assert installed(machine) == ["@openai/codex@1.2.3"]
    assert executable(CODEX).exists()
    assert folder(CODEX) == machine / "cache" / "tidemill" / "harnesses" / "codex@1.2.3"
    assert said == [f"installing @openai/codex@1.2.3 with npm, once, into {folder(CODEX)}", "installed @openai/codex@1.2.3"]


def test_two_jobs_that_start_together_install_it_once(machine: Path) -> None:
    put_npm(machine, "sleep 0.2\n" + WORKS)
    installing = [threading.Thread(target=install, args=(CODEX, print)) for _ in range(3)]
    for thread in installing:
        thread.start()
    for thread in installing:
        thread.join()
    assert installed(machine) == ["@openai/codex@1.2.3"]


def test_without_a_version_it_is_the_one_that_is_tested(machine: Path) -> None:
    put_npm(machine)
    install(HarnessSpec(preset="codex"), print)
    assert installed(machine) == [f"@openai/codex@{PROGRAMS['codex'].version}"]


@pytest.mark.parametrize(
    ("body", "reason"), [("echo 'E404 no such version' >&2; exit 1", "npm ended with 1: E404 no such version"), ("true", "has no program codex")]
)
def test_an_installation_that_fails_says_why_and_leaves_nothing_behind(machine: Path, body: str, reason: str) -> None:
    put_npm(machine, body)
    with pytest.raises(ProgramUnavailable, match=rf"^@openai/codex@1.2.3.*{reason}"):
        install(CODEX, print)
    assert os.listdir(folder(CODEX).parent) == [".lock"]


def test_a_machine_without_npm_is_told_before_a_job_starts_unless_the_program_is_there(machine: Path) -> None:
    assert [violation.path for violation in missing(CODEX)] == ["spec.harness.preset"]
    assert "no npm on this machine" in str(next(missing(CODEX)))
    with pytest.raises(ProgramUnavailable, match="no npm to install @openai/codex"):
        install(CODEX, print)
    executable(CODEX).parent.mkdir(parents=True)
    executable(CODEX).touch()
    assert "no node on this machine" in str(next(missing(CODEX)))
    put_npm(machine)
    assert list(missing(CODEX)) == []


def test_a_sandbox_too_small_for_the_program_is_told_with_what_it_takes() -> None:
    spec = job("qwen-code").spec
    assert [str(violation) for violation in cramped(spec)] == [
        "spec.sandbox.resources.memory: is 512Mi, but qwen-code takes up to 1Gi by itself; give it that and what tasks need"
    ]
    assert list(cramped(job("react").spec)) == list(cramped(job("codex").spec)) == []


def test_presets_that_are_not_installed_need_nothing(machine: Path) -> None:
    for preset in ("react", "generic", "mini-swe-agent"):
        assert list(missing(HarnessSpec(preset=preset))) == []
        install(HarnessSpec(preset=preset), print)

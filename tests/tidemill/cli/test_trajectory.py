from pathlib import Path

import msgspec
import pytest

from tests.tidemill.report.trajectories import WHOLE
from tidemill.cli.main import main
from tidemill.trajectory.files import write_trajectory
from tidemill.trajectory.records import FORMAT_VERSION


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "trajectories").mkdir()
    write_trajectory(tmp_path / "trajectories", WHOLE)
    return tmp_path


def with_job(workdir: Path) -> Path:
    whole = Path(__file__).parents[1] / "api" / "whole.yaml"
    (workdir / "job.yaml").write_text(whole.read_text())
    return workdir


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["trajectory", "show", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_an_execution_is_found_by_its_name_and_every_branch_has_a_line(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "g1-0", "--workdir", str(with_job(workdir)))
    assert out.splitlines()[0] == "g1-0  task fix, attempt 1, dispatched under version 3: score 0.5"
    lines = [line.strip("│├└─ ") for line in out.splitlines()]
    assert "main  2 calls · 4 given (system, user, tool) · 4 sampled · 4 drawn · version 3-4 · cell-0 3, cell-1 1 · 1 answer moved" in lines
    assert "main: summary at token 5  1 call · 2 given (tool) · 2 sampled · 2 drawn · version 3 · cell-0" in lines
    assert "sub-agent deeper of look<up>  1 call · 1 given (system, user) · 2 sampled · 0 drawn · version 3 · cell-0" in lines
    assert "9 calls on 7 branches; 14 tokens given, 18 sampled" in lines
    assert "14 sampled tokens on 5 paths are drawn for training; they are trained if the scores of the group differ." in lines
    assert "The harness ran into its time-out; its work was judged as it stood then." in lines
    assert "Judged: tests ended (evaluator asked 2 times)." in lines
    assert "Work: executions/g1-0/1/work d" in lines


def test_a_file_away_from_its_job_is_shown_without_what_only_the_job_knows(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, str(workdir / "trajectories" / "g1-0.msgpack"))
    assert "drawn" not in out
    assert "Which paths are trained cannot be told without the job" in out


def test_a_file_in_a_work_folder_finds_its_job(workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(with_job(workdir) / "trajectories")
    assert "drawn for training" in shown(capsys, "g1-0.msgpack")
    monkeypatch.chdir(workdir)
    assert "drawn for training" in shown(capsys, "g1-0")


def test_html_is_written_where_it_was_asked_for(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "g1-0", "--workdir", str(with_job(workdir)), "--html", str(workdir / "tree.html"))
    assert out == f"{workdir / 'tree.html'}\n"
    assert "<svg" in (workdir / "tree.html").read_text()


def damaged(workdir: Path, content: bytes) -> Path:
    path = workdir / "trajectories" / "bad.msgpack"
    path.write_bytes(content)
    return path


def raw(**changes: object) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(WHOLE, **changes))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is no trajectory, or a damaged one"),
        (b"\x93\x01\x02\x03", "is no trajectory, or a damaged one"),
        (raw()[:200], "is no trajectory, or a damaged one"),
        (raw(format=FORMAT_VERSION + 1), f"format {FORMAT_VERSION + 1}, this version reads up to {FORMAT_VERSION}; use the version that wrote it"),
        (raw(turns=WHOLE.turns[1:]), "turn t2 continues turn t1, which is not recorded"),
    ],
    ids=["empty", "other", "cut", "newer", "broken"],
)
def test_what_cannot_be_shown_is_refused_with_the_reason(workdir: Path, capsys: pytest.CaptureFixture[str], content: bytes, complaint: str) -> None:
    path = damaged(workdir, content)
    assert main(["trajectory", "show", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"trajectory {path}: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_what_is_not_there_is_said_with_what_is(workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workdir)
    for arguments, complaint in (
        (["g2-0"], "trajectory g2-0: no execution of this name has ended in trajectories; it has g1-0\n"),
        (["g2-0", "--workdir", "nowhere"], "trajectory g2-0: there is no folder nowhere/trajectories; name the job's work folder with --workdir\n"),
        (["away/g1-0.msgpack"], "trajectory away/g1-0.msgpack: there is no such file\n"),
        (["g1-0", "--workdir", "."], "trajectory g1-0: . is no job's work folder: "),
        (["g1-0", "--html", "no/such/folder.html"], "trajectory g1-0: "),
    ):
        assert main(["trajectory", "show", *arguments]) == 2
        assert capsys.readouterr().err.startswith(complaint)

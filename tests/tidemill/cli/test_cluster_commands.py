"""What users type for a job on a cluster, and what they read when it cannot be."""

import io
import sys
from pathlib import Path

import msgspec
import pytest

from tests.tidemill.cluster import documents
from tests.tidemill.report.test_reading import EVENTS
from tidemill.cli import top
from tidemill.cli.cell import meant
from tidemill.cli.main import main
from tidemill.cli.on_cluster import job_and_cell
from tidemill.cli.top import Showing, parting_words
from tidemill.cluster.following import Seen
from tidemill.cluster.objects import job_of
from tidemill.cluster.trouble import ClusterTrouble
from tidemill.report.live import View
from tidemill.telemetry.events import JobEnded
from tidemill.wire.cell import Role

COMMANDS = [
    ["status"],
    ["top"],
    ["timeline"],
    ["flip", "cell-1", "Rollout"],
    ["drain", "cell-1"],
    ["suspend"],
    ["resume"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_without_a_kubeconfig_every_command_says_so_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*words, "--kubeconfig", str(tmp_path / "none")]) == 2
    told = capsys.readouterr()
    assert told.err == f"no kubeconfig: {tmp_path / 'none'} is not there; give --kubeconfig FILE or set KUBECONFIG\n"
    assert not told.out


def test_the_job_may_be_left_out() -> None:
    assert job_and_cell(["cell-1"]) == (None, "cell-1")
    assert job_and_cell(["sail", "cell-1"]) == ("sail", "cell-1")
    for words in ([], ["a", "b", "c"]):
        with pytest.raises(ClusterTrouble, match=r"expected \[JOB\] CELL"):
            job_and_cell(words)


@pytest.mark.parametrize("written", ["Training", "training", "TRAINING"])
def test_a_role_is_the_last_word(written: str) -> None:
    assert meant(["sail", "cell-1", written], release=False) == (["sail", "cell-1"], Role.TRAINING)


def test_a_flip_is_to_a_role_or_a_release_and_never_both() -> None:
    assert meant(["cell-1"], release=True) == (["cell-1"], None)
    for words, release in ((["cell-1"], False), (["cell-1", "Rollout"], True), (["cell-1", "Rolout"], False)):
        with pytest.raises(ClusterTrouble, match="say one of Rollout, Training or --release"):
            meant(words, release)


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def show(self, view: View) -> None:
        self.lines.append(f"step {view.step}")

    def close(self) -> None:
        pass


def test_silence_of_the_cluster_is_told_once_and_so_is_its_end() -> None:
    said, job = Said(), job_of(documents.job())
    showing = Showing(said)
    for trouble in ("", "no answer", "no answer", ""):
        assert showing.show(Seen(job, (), trouble)) is False
    assert said.lines == ["step 3", "no answer; what is shown is from before", "step 3", "step 3", "the cluster answers again", "step 3"]


def test_watching_ends_with_the_job_and_says_how_it_ended() -> None:
    ended = Seen(job_of(documents.job(status={"phase": "Failed", "conditions": [documents.condition("Finished", "True", "Failed", "no disk")]})), ())
    assert Showing(Said()).show(ended) is True
    assert parting_words("sail", ended) == "rljob sail: Failed: no disk"
    assert parting_words("sail", None) == "rljob sail was deleted"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_work_folder_is_watched_in_a_terminal_until_its_job_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, terminal = tmp_path / "metrics.jsonl", Tty()
    file.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in EVENTS))
    monkeypatch.setattr(sys, "stderr", terminal)

    def goes_on(seconds: float) -> None:
        assert "no disk" not in terminal.getvalue(), "it looks again only while the job has not ended"
        with file.open("ab") as lines:
            lines.write(msgspec.json.encode(JobEnded(time=9.0, phase="Failed", reason="no disk")) + b"\n")

    monkeypatch.setattr(top.time, "sleep", goes_on)
    assert main(["top", "--workdir", str(tmp_path)]) == 1
    assert "waterlevel" in terminal.getvalue()
    assert "Failed: no disk" in terminal.getvalue()


def test_who_has_seen_enough_stops_watching_with_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in EVENTS))
    monkeypatch.setattr(sys, "stderr", Tty())

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", interrupted)
    assert main(["top", "--workdir", str(tmp_path)]) == 130


def test_a_work_folder_is_shown_once_where_nobody_watches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--workdir", str(tmp_path)]) == 2
    assert "holds no job" in capsys.readouterr().err
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in (*EVENTS, JobEnded(time=9.0, phase="Failed", reason="no disk")))
    (tmp_path / "metrics.jsonl").write_bytes(lines + b'{"cut sho')
    assert main(["top", "--workdir", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "Failed" in told.splitlines()[0]
    assert "1 / 4" in told
    assert "waterlevel" in told
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in EVENTS))
    assert main(["top", "--workdir", str(tmp_path)]) == 0, "it runs, or is stopped"

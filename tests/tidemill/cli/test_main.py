"""The command line: exit codes, and one line for each mistake."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.tidemill.api.test_loading import WHOLE
from tests.tidemill.report.test_page import events
from tidemill.cli.main import EXIT_UNREAD, main

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_valid_manifest_is_said_to_be_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(EXAMPLES / "tiny" / "rljob.yaml")]) == 0
    assert capsys.readouterr().out == "rljob tiny: valid\n"


def test_what_only_this_machine_refuses_is_said_of_a_valid_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        WHOLE.read_text().replace("path:examples/quickstart/tasks", "path:/opt/nobody/has/this").replace("gpusPerNode: 0", "gpusPerNode: 999")
    )
    assert main(["validate", str(file)]) == 0
    said = capsys.readouterr().out
    assert "would refuse it on this machine: spec.tasks.source: is 'path:/opt/nobody/has/this', but there is no such folder" in said
    assert "would refuse it on this machine: spec.cells.gpusPerNode: is 999, which makes 2997 for 3 cells" in said
    assert main(["run", str(file), "--workdir", str(tmp_path / "run")]) == 2
    refused = capsys.readouterr().err
    assert "spec.tasks.source" in refused
    assert "spec.cells.gpusPerNode" in refused
    assert not (tmp_path / "run").exists()


def test_mistakes_of_all_kinds_are_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    text = (
        WHOLE.read_text().replace("capacity: 8", "capacity: 0").replace("preset: react", "preset: reakt").replace("maxTokens: 64", "maxTokens: 4096")
    )
    file.write_text(text.replace("maxLength: 2048", "maxLength: many"))
    assert main(["validate", str(file)]) == 2
    named = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert named == ["spec.model.maxLength", "spec.cells.capacity", "spec.harness.preset", "spec.tasks.source"]


def test_an_invalid_one_gives_one_line_for_each_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(WHOLE.read_text().replace("groupsPerStep: 4", "groupPerStep: 4").replace("capacity: 8", "capacity: 0"))
    assert main(["validate", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4, "the tasks are not beside this file either"
    assert all(line.startswith("rljob quickstart: spec.") for line in lines)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/rljob.yaml")), ids=lambda f: f.parent.name)
def test_the_examples_are_valid(file: Path) -> None:
    assert main(["validate", str(file)]) == 0


def test_fields_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "rljob.spec.schedule"]) == 0
    assert "groupsPerStep <integer> required" in capsys.readouterr().out
    assert main(["explain", "rljob.spec.nothing"]) == 2


def test_run_refuses_a_bad_manifest_and_a_bad_mode_before_it_makes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    (tmp_path / "tasks").mkdir()
    file.write_text((EXAMPLES / "tiny" / "rljob.yaml").read_text().replace("mode: Elastic", "mode: Elastic, asyncTrainingCells: 3"))
    assert main(["run", str(file), "--workdir", str(tmp_path / "run"), "--mode", "Async"]) == 2
    assert "spec.schedule.asyncTrainingCells: is 3 of 3 cells" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_report_of_a_folder_without_a_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no job" in capsys.readouterr().err


def test_a_report_leaves_out_what_is_no_event_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [msgspec.json.encode(event) for event in events()]
    lines[3:3] = [b'{"event": "nope"}', b"\xff\x00", b"{", b'{"event": "tide"}']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 4
    assert "metrics.jsonl: line 4 is no event: Invalid value 'nope'" in said[0]
    assert said[3].endswith("1 more lines are no events; left out")
    assert "drain 1.00" in (tmp_path / "report.html").read_text()


def test_a_report_without_a_start_or_into_a_file_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\0" * 100 + b"\n")
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no job that has started" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / "file")]) == 2
    assert "no report of" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["crds", "--out", "/proc/x"], ["simulate", str(EXAMPLES / "tiny" / "rljob.yaml"), "--html", "/proc/x/y.html"]])
def test_a_file_that_cannot_be_written_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("cannot write")
    assert "/proc/x" in said


def test_watching_and_simulating_damaged_records_ends_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [msgspec.json.encode(event) for event in events()]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*lines[:4], b"\0\0", *lines[4:]]) + b"\n")
    assert main(["top", "--workdir", str(tmp_path)]) == 0
    assert "Succeeded" in capsys.readouterr().out
    assert main(["simulate", str(EXAMPLES / "tiny" / "rljob.yaml"), "--from", str(tmp_path)]) == 2
    assert "line 5 is no event" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["/proc/tidemill/run", "/sys/tidemill", "{tmp}/file/run", "{tmp}/loop", "/dev/null"])
def test_a_work_folder_that_cannot_be_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    assert main(["run", str(EXAMPLES / "tiny" / "rljob.yaml"), "--workdir", name.format(tmp=tmp_path)]) == 2
    assert "give another --workdir" in capsys.readouterr().err


def test_ctrl_c_while_the_command_is_being_imported_ends_it_without_a_word() -> None:
    code = """
import importlib.abc, os, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "tidemill.local.job":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from tidemill.cli.main import EXIT_UNREAD, main
sys.exit(main(["explain"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_command_starts_quickly_and_loads_no_torch() -> None:
    code = """
import sys
from tidemill.cli.main import EXIT_UNREAD, main
main(["explain", "rljob"])
sys.exit(bool({"torch", "vllm", "matplotlib", "kubernetes"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_a_reader_who_has_enough_ends_a_command_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "tidemill.cli.main", "explain", "rljob"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (EXIT_UNREAD, "")

"""The command line: exit codes, and one line for each mistake."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidemill.api.test_loading import WHOLE
from tidemill.cli.main import main


def test_a_valid_manifest_is_said_to_be_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(WHOLE)]) == 0
    assert capsys.readouterr().out == "rljob quickstart: valid\n"


def test_an_invalid_one_gives_one_line_for_each_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(WHOLE.read_text().replace("groupsPerStep: 4", "groupPerStep: 4").replace("capacity: 8", "capacity: 0"))
    assert main(["validate", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("rljob quickstart: spec.") for line in lines)


@pytest.mark.parametrize("file", sorted(Path(__file__).parents[3].glob("examples/*/rljob.yaml")), ids=lambda f: f.parent.name)
def test_the_examples_are_valid(file: Path) -> None:
    assert main(["validate", str(file)]) == 0


def test_fields_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "rljob.spec.schedule"]) == 0
    assert "groupsPerStep <integer> required" in capsys.readouterr().out
    assert main(["explain", "rljob.spec.nothing"]) == 2


def test_run_refuses_a_bad_manifest_and_a_bad_mode_before_it_makes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(WHOLE.read_text().replace("asyncTrainingCells: 1", "asyncTrainingCells: 3"))
    assert main(["run", str(file), "--workdir", str(tmp_path / "run"), "--mode", "Async"]) == 2
    assert "spec.schedule.asyncTrainingCells: is 3 of 3 cells" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_report_of_a_folder_without_a_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no job" in capsys.readouterr().err


def test_the_command_starts_quickly_and_loads_no_torch() -> None:
    code = """
import sys
from tidemill.cli.main import main
main(["explain", "rljob"])
sys.exit(bool({"torch", "vllm", "matplotlib"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0

"""How a run ends when it does not end well: with a summary, a report, and the processes gone."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.tidemill.api.test_loading import document
from tests.tidemill.report.test_page import events
from tidemill.api import parse_rljob
from tidemill.cli import run
from tidemill.cli.main import main
from tidemill.local import job as local_job
from tidemill.local import processes
from tidemill.local.commands import Layout
from tidemill.local.model import ModelUnavailable, prepare_model
from tidemill.local.processes import Command
from tidemill.local.summary import Summary, summarize

TINY = Path(__file__).parents[3] / "examples" / "tiny" / "rljob.yaml"
WORKS = "import time; print('up', flush=True); time.sleep(60)"
CRASHES = """
import pathlib, sys
for part in ("conductor.db", "metrics.jsonl"):
    pathlib.Path({folder!r}, part).write_bytes(pathlib.Path({events!r}).read_bytes())
sys.exit("out of luck")
"""
REFUSES = """print('{"event": "the conductor cannot start", "reason": "tasks: none of 4 matches filter"}'); raise SystemExit(2)"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Instead of conductor and gateway the programs `conductor.py` and `gateway.py` in `tmp_path`. Their process ids."""
    (tmp_path / "events").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events()[:-1]))

    def commands(_: object, layout: Layout) -> Iterator[Command]:
        for name in ("conductor", "gateway"):
            yield Command(name, name, (), {"PYTHONPATH": str(tmp_path)}, layout.folder / "logs" / f"{name}.log")

    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    pids: list[int] = []
    spawn = processes._spawn

    def noted(command: Command) -> object:
        made = spawn(command)
        pids.append(made.pid)
        return made

    monkeypatch.setattr(processes, "_spawn", noted)
    monkeypatch.setattr(processes, "RESTARTS_ALLOWED", 1)
    monkeypatch.setattr(local_job, "commands", commands)
    monkeypatch.setattr(local_job, "prepare_model", lambda *_: tmp_path)
    monkeypatch.setattr(local_job, "footprint", lambda *_: None)
    monkeypatch.setattr(local_job, "check_memory", lambda *_: None)
    yield pids
    for number, before in heard.items():
        signal.signal(number, before)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def ended(tmp_path: Path, conductor: str, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    (tmp_path / "conductor.py").write_text(conductor)
    (tmp_path / "gateway.py").write_text(WORKS)
    code = main(["run", str(TINY), "--workdir", str(tmp_path / "run"), "--json", *arguments])
    said = capfd.readouterr()
    return code, said.out, said.err


def test_a_job_whose_conductor_keeps_dying_leaves_a_summary_and_a_report(
    tmp_path: Path, started: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    crashing = CRASHES.format(folder=str(tmp_path / "run"), events=str(tmp_path / "events"))
    code, out, err = ended(tmp_path, crashing, capfd)
    assert code == run.EXIT_FAILED
    summary = msgspec.json.decode(out.splitlines()[-1], type=Summary)
    assert (summary.phase, summary.steps) == ("Failed", 1)
    assert "conductor ended with exit code 1 2 times in a row" in summary.reason
    assert "out of luck" in err
    assert "Go on with --resume once the cause is gone." in err
    assert (tmp_path / "run" / "report.html").exists()
    assert len(started) == 3


def test_a_conductor_that_refuses_its_tasks_ends_the_run_at_once_as_if_it_had_not_been(
    tmp_path: Path, started: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ended(tmp_path, REFUSES, capfd)
    assert (code, out) == (run.EXIT_REFUSED, "")
    assert err.splitlines()[-1] == "rljob tiny: tasks: none of 4 matches filter"
    assert not (tmp_path / "run").exists()
    assert len(started) == 2


def test_a_resumed_job_that_is_refused_is_kept(tmp_path: Path, started: list[int], capfd: pytest.CaptureFixture[str]) -> None:
    crashing = CRASHES.format(folder=str(tmp_path / "run"), events=str(tmp_path / "events"))
    ended(tmp_path, crashing, capfd)
    code, _, err = ended(tmp_path, REFUSES, capfd, "--resume")
    assert code == run.EXIT_REFUSED
    assert "none of 4 matches filter" in err
    assert (tmp_path / "run" / "conductor.db").exists()


def test_a_job_that_is_stopped_while_its_model_is_prepared_can_be_resumed(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(local_job, "prepare_model", interrupted)
        code, out, err = ended(tmp_path, WORKS, capfd)
    assert code == run.EXIT_STOPPED
    assert msgspec.json.decode(out, type=Summary).phase == "Stopped"
    assert "Go on with --resume." in err
    assert started == []
    code, out, err = ended(tmp_path, REFUSES, capfd, "--resume")
    assert "none of 4 matches filter" in err, "it was let in, and its conductor started"


def test_why_a_model_is_not_there_is_said_once(tmp_path: Path) -> None:
    job = parse_rljob(document(model__source="package:nope"))
    with pytest.raises(ModelUnavailable) as caught:
        prepare_model(job, tmp_path / "model.log")
    assert str(caught.value).count("spec.model.source package:nope: ") == 1
    assert not str(caught.value).startswith("rljob")


def test_the_summary_tells_the_clock_of_the_screen_and_that_of_the_job() -> None:
    told = run.for_people(summarize(events(), None, 1100), 193.4)
    assert told.startswith("Succeeded after 3:13 (of the job 1:40 in all its runs): 1 steps")
    assert "2 answers moved" in told
    assert os.linesep + "Go on" not in told

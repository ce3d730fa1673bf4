"""`tidemill simulate`: figures for programs and for people, pictures, and refusals."""

import json
from pathlib import Path

import pytest

from tests.tidemill.simulate.jobs import even
from tidemill.cli.main import main
from tidemill.simulate.durations import Durations
from tidemill.simulate.traces import write_trace

TINY = Path(__file__).parents[3] / "examples" / "tiny" / "rljob.yaml"


def simulate(*arguments: object) -> int:
    return main(["simulate", str(TINY), *map(str, arguments)])


def test_the_figures_for_programs_have_the_documented_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"modes", "bound", "speedup"}
    assert set(document["modes"]) == {"Elastic", "Colocate", "Async"}
    for figures in document["modes"].values():
        assert set(figures) == {"hours", "rolloutUtilization", "trainingUtilization", "idleHours", "flips", "stalenessMax", "stepsDone"}
        assert figures["stepsDone"] == 12
        assert figures["hours"] >= document["bound"]["hours"] > 0
    assert document["speedup"]["Colocate"] == pytest.approx(document["modes"]["Colocate"]["hours"] / document["modes"]["Elastic"]["hours"])


def test_the_same_seed_gives_the_same_figures_and_another_gives_others(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for seed in (1, 1, 2):
        assert simulate("--json", "--seed", seed) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]


def test_people_read_a_table_what_was_assumed_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate() == 0
    out = capsys.readouterr().out
    for expected in ("no schedule below", "No costs were given", "Choose ", "What limits it is", "One more cell (4)"):
        assert expected in out


def test_one_mode_with_one_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--json", "--mode", "Async", "--async-training-cells", 2) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["modes"]) == {"Async"}
    assert document["speedup"] == {}


def test_a_trace_and_costs_are_taken_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(even(24, size=4), tmp_path / "trace.jsonl")
    (tmp_path / "costs.yaml").write_text("trainTokensPerSecond: 1000000\n")
    assert simulate("--json", "--mode", "Elastic", "--trace", tmp_path / "trace.jsonl", "--costs", tmp_path / "costs.yaml") == 0
    hours = json.loads(capsys.readouterr().out)["modes"]["Elastic"]["hours"]
    assert hours == pytest.approx(6 * 10 / 3600, rel=0.01), "six bursts, each as long as an execution"


def test_a_short_trace_comes_round_again_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(even(5, size=4), tmp_path / "trace.jsonl")
    assert simulate("--trace", tmp_path / "trace.jsonl") == 0
    assert "The trace has 5 groups and the job trains 24" in capsys.readouterr().out


def test_sweeps_and_frontiers_are_in_both_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--json", "--sweep", "cells=2..3", "--sweep", "prefetchSteps=0,1", "--frontier") == 0
    document = json.loads(capsys.readouterr().out)
    assert [(p["cells"], p["prefetchSteps"]) for p in document["sweep"]] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert set(document["frontier"]) == {"Elastic", "Colocate", "Async"}
    assert simulate("--sweep", "cells=2..3", "--frontier") == 0
    out = capsys.readouterr().out
    assert "cells 3" in out
    assert "On the frontier of hours against staleness choose" in out


def test_pictures_are_whole_and_load_nothing(tmp_path: Path) -> None:
    assert simulate("--html", tmp_path / "r.html", "--png", tmp_path / "p.png", "--sweep", "cells=2..3") == 0
    page = (tmp_path / "r.html").read_text()
    assert page.endswith("</html>")
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    for expected in ("Elastic: what each cell did", "Async: what each cell did", "Hours by cells", "no schedule below", "cell-2"):
        assert expected in page
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p.png", "r.html"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--trace", "bad.jsonl"], "bad.jsonl:2: seconds is -1"),
        (["--trace", "pairs.jsonl"], "its groups have 2 executions, but spec.schedule.rolloutsPerGroup is 4"),
        (["--trace", "none.jsonl"], "No such file"),
        (["--costs", "costs.yaml"], "trainTokensPerSecond"),
        (["--from", "."], "holds no job"),
        (["--sweep", "cells=x"], "is no range"),
        (["--async-training-cells", "3"], "--async-training-cells 3: give best, or a number from 1 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text('{"group": 0, "seconds": 1, "tokens": 1}\n{"group": 0, "seconds": -1, "tokens": 1}\n')
    write_trace(Durations(1.0, 0.1, 0.0).draw(4, 2, 1), Path("pairs.jsonl"))
    Path("costs.yaml").write_text("trainTokensPerSecond: -1\n")
    assert simulate(*arguments) == 2
    assert what in capsys.readouterr().err

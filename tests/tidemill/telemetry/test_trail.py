from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli.main import main
from tidemill.telemetry import logs
from tidemill.telemetry.logs import Log, stamp
from tidemill.telemetry.trail import Line, about, lines, merged, told, turn_lines
from tidemill.trajectory.files import write_trajectory
from tidemill.trajectory.records import FORMAT_VERSION, Piece, Trajectory, Turn


def turn(name: str, ended: float = 100.0, agent: str = "") -> Turn:
    pieces = (Piece("cell-1", (5, 6), (-0.1, -0.2), (0, 0)), Piece("cell-2", (7,), (-0.3,), (1,)))
    return Turn(name, "g1-0", 1, "", agent, (1, 2, 3, 4), pieces, "stop", ended - 2.5, ended, "chat")


def line(seconds: float, event: str = "something", **fields: object) -> Line:
    return Line(stamp(seconds), {"time": stamp(seconds), "level": "info", "process": "gateway", "event": event, **fields})


def test_what_children_and_libraries_print_is_passed_over() -> None:
    text = ["INFO 03:00 [vllm] loading", '{"not": "ours"}', "[1, 2]", json.dumps(line(1.0).fields), '{"time": "torn", "ev']
    assert [one.fields["event"] for one in lines(text)] == ["something"]


def test_a_line_is_about_an_execution_that_it_names_or_whose_turn_or_call_it_names() -> None:
    turns = frozenset({"a1b2"})
    assert about(line(1.0, execution="g1-0"), "g1-0")
    assert about(line(1.0, executions=["g1-0", "g1-1"]), "g1-0")
    assert about(line(1.0, call="a1b2-1"), "g1-0", turns)
    assert about(line(1.0, turn="a1b2"), "g1-0", turns)
    assert not about(line(1.0, execution="g1-01"), "g1-0", turns)
    assert not about(line(1.0, call="c3d4-1", cell="cell-1"), "g1-0", turns)


@given(st.lists(st.lists(st.floats(0, 4e9)), max_size=4))
def test_lines_of_all_processes_come_in_the_order_of_their_times(times: list[list[float]]) -> None:
    several = [[line(seconds) for seconds in sorted(of_one)] for of_one in times]
    found = [one.time for one in merged(*several)]
    assert found == sorted(found)
    assert len(found) == sum(map(len, times))


@given(st.lists(st.integers(0, 4 * 10**12), min_size=2, max_size=2))
def test_stamps_sort_as_times_do(milliseconds: list[int]) -> None:
    first, second = milliseconds
    assert (stamp(first / 1000) < stamp(second / 1000)) == (first < second)


def test_people_read_when_who_and_what_and_warnings_stand_out() -> None:
    text = told(line(3661.5, "cell drained", cell="cell-1", epoch=4, why="two words", execution="g1-0"), without=("execution",))
    assert text == '01:01:01.500  gateway cell-1   cell drained  epoch=4 why="two words"'
    warned = Line(stamp(0.0), {"process": "cell", "event": "phase failed", "level": "warning", "traceback": "Traceback ..."})
    assert told(warned).splitlines() == ["00:00:00.000  cell             WARNING phase failed", "Traceback ..."]


def test_turns_are_told_in_the_order_in_which_they_ended() -> None:
    found = list(turn_lines([turn("t2", 200.0, agent="sub"), turn("t1", 100.0)], stamp))
    assert [one.fields["turn"] for one in found] == ["t1", "t2"]
    assert found[0].fields | {"cells": "cell-1,cell-2", "given": 4, "sampled": 3, "seconds": 2.5} == found[0].fields
    assert ("agent" in found[0].fields, found[1].fields["agent"]) == (False, "sub")


async def test_what_a_task_is_about_is_in_the_lines_of_the_tasks_that_it_starts_and_of_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    logs.start("conductor", job="mill")
    log = Log("test")

    async def child() -> None:
        log.info("inner", turn="t1")

    async def live(name: str) -> None:
        with logs.about(execution=name, attempt=1):
            await asyncio.create_task(child())

    await asyncio.gather(live("g1-0"), live("g1-1"))
    log.info("outer")
    said = [json.loads(text) for text in capsys.readouterr().err.splitlines()]
    inner = [(one["job"], one["execution"], one["attempt"], one["turn"]) for one in said if one["event"] == "inner"]
    assert sorted(inner) == [("mill", "g1-0", 1, "t1"), ("mill", "g1-1", 1, "t1")]
    assert "execution" not in said[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The work folder of a job with two processes and one execution that has ended."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "trajectories").mkdir()
    conductor = [line(90.0, "harness starts", process="conductor", execution="g1-0", task="t"), line(110.0, "execution judged", execution="g1-0")]
    gateway = [line(91.0, "execution opened", execution="g1-0"), line(99.0, "a call goes on", call="a1-1", cell="cell-2"), line(99.5, "cell routed")]
    for name, said in (("conductor", conductor), ("gateway", gateway)):
        (tmp_path / "logs" / f"{name}.log").write_text("noise\n" + "".join(json.dumps(one.fields) + "\n" for one in said))
    write_trajectory(tmp_path / "trajectories", Trajectory(FORMAT_VERSION, "g1-0", 1, "t", 1, 0, 1.0, (turn("a1"),)))
    return tmp_path


def test_the_command_follows_one_execution_through_all_processes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--workdir", str(folder), "--execution", "g1-0"]) == 0
    said = [text[31:].split("  ")[0].strip() for text in capsys.readouterr().out.splitlines()]
    assert said == ["harness starts", "execution opened", "a call goes on", "turn finished", "execution judged"]


def test_the_command_prints_everything_or_lines_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--workdir", str(folder), "--json"]) == 0
    said = [json.loads(text)["event"] for text in capsys.readouterr().out.splitlines()]
    assert said == ["harness starts", "execution opened", "a call goes on", "cell routed", "execution judged"]


def test_the_command_says_when_nothing_was_found(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "--workdir", str(folder), "--execution", "g9-9"]) == 2
    assert "no line is about g9-9" in capsys.readouterr().err
    assert main(["logs", "--workdir", str(tmp_path / "trajectories")]) == 2
    assert "there are no logs" in capsys.readouterr().err

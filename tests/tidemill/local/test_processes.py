"""Processes end with the runner, come back when they die, and fail loudly when they keep dying."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.local.processes import STOP_SECONDS, Command, Processes, ProcessFailed, ProcessRefused


def command(tmp_path: Path, module: str, text: str) -> Command:
    (tmp_path / f"{module}.py").write_text(text)
    return Command(module, module, (), {"PYTHONPATH": str(tmp_path)}, tmp_path / f"{module}.log")


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_dead_process_comes_back(tmp_path: Path) -> None:
    processes = Processes()
    processes.start(command(tmp_path, "sleeper", "import time; time.sleep(60)"))
    first = processes.running[0].process.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: processes.running[0].process.poll() is not None)

    def tended() -> bool:
        processes.tend(time.monotonic())
        return processes.running[0].process.pid != first

    until(tended)
    processes.stop()


def test_a_process_that_keeps_dying_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    processes = Processes()
    processes.start(command(tmp_path, "crasher", "print('cannot open the database'); raise SystemExit(3)"))
    now = time.monotonic()

    def tend_for_ever() -> None:
        for second in range(0, 400, 10):
            processes.running[0].process.wait()
            processes.tend(now + second)

    with pytest.raises(ProcessFailed, match=r"(?s)crasher ended with exit code 3 6 times in a row.*cannot open the database"):
        tend_for_ever()
    processes.stop()


def test_a_process_that_says_that_it_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    processes = Processes()
    processes.start(
        command(tmp_path, "refusing", """print('{"event": "cannot start", "reason": "tasks x: there is no folder x"}'); raise SystemExit(2)""")
    )
    processes.running[0].process.wait()
    with pytest.raises(ProcessRefused, match=r"^tasks x: there is no folder x$"):
        processes.tend(time.monotonic())
    processes.stop()


def test_what_says_so_after_it_has_worked_is_started_again(tmp_path: Path) -> None:
    processes = Processes()
    processes.start(command(tmp_path, "later", "raise SystemExit(2)"))
    processes.running[0].process.wait()
    processes.tend(processes.running[0].started + 3600)
    assert processes.running[0].next_start > 0
    processes.stop()


def test_while_the_stubborn_are_given_their_time_the_caller_has_it_too(tmp_path: Path) -> None:
    text = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    processes = Processes()
    for name in ("first", "second"):
        processes.start(command(tmp_path, name, text))
    until(lambda: all(one.command.log_file.read_text() for one in processes.running))
    began = time.monotonic()
    processes.ask_to_stop()
    assert [one.process.poll() for one in processes.running] == [None, None]
    time.sleep(1.0)  # a report
    processes.await_end()
    assert all(one.process.poll() == -signal.SIGKILL for one in processes.running)
    assert time.monotonic() - began < STOP_SECONDS + 1.0


def test_stop_ends_those_that_ignore_it_and_their_children(tmp_path: Path) -> None:
    text = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
time.sleep(60)
"""
    one = command(tmp_path, "stubborn", text)
    processes = Processes()
    processes.start(one)
    until(lambda: one.log_file.read_text().strip() != "")
    child = int(one.log_file.read_text())
    started = time.monotonic()
    processes.stop()
    assert time.monotonic() - started < 10
    assert processes.running[0].process.poll() is not None
    until(lambda: not alive(child), 2)


def test_the_first_process_has_ended_before_the_others_are_told_to_end(tmp_path: Path) -> None:
    text = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep({seconds})
    with open({order!r}, "a") as file: file.write({name!r} + " ")
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(60)
"""
    order = tmp_path / "order"
    processes = Processes()
    for name, seconds in (("conductor", 0.3), ("gateway", 0.0)):
        processes.start(command(tmp_path, name, text.format(order=str(order), name=name, seconds=seconds)))
    until(lambda: all(one.command.log_file.read_text() for one in processes.running))
    processes.stop()
    assert order.read_text() == "conductor gateway "


def test_killing_the_runner_leaves_no_process(tmp_path: Path) -> None:
    command(tmp_path, "orphan", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    code = f"""
import pathlib, time
from tidemill.local.processes import Command, Processes
p = Processes()
p.start(Command("orphan", "orphan", (), {{"PYTHONPATH": {str(tmp_path)!r}}}, pathlib.Path({str(tmp_path / "orphan.log")!r})))
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as runner:
        log = tmp_path / "orphan.log"
        until(lambda: log.exists() and log.read_text().strip() != "")
        pid = int(log.read_text())
        runner.kill()
    until(lambda: not alive(pid), 2)

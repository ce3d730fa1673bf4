"""Supervision of real processes: small scripts that crash, hang, ignore TERM, and leave grandchildren."""

import asyncio
import contextlib
import ctypes
import os
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from tests.ports import free_port
from tidemill_cell.children import Child, Health, Program, last_lines
from tidemill_cell.process_group import ProcessGroup, adopt_orphans
from tidemill_cell.restarts import Failures, Patience

DEADLINE_SECONDS = 20.0
QUICK = Patience(
    start_seconds=15.0,
    poll_seconds=0.02,
    answer_seconds=0.2,
    silent_seconds=0.3,
    steady_seconds=60.0,
    restarts=5,
    first_pause_seconds=0.01,
    longest_pause_seconds=0.05,
    term_seconds=0.3,
)

ANSWERS = """
import http.server, os, signal, subprocess, sys, time

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if os.path.exists(sys.argv[2]):  # hang, once and for all
            time.sleep(1000)
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass

def serve():
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


async def until(reached: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not reached():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS:g} s: {what}"
        await asyncio.sleep(0.01)


@pytest.fixture
def adopting() -> Iterator[None]:
    """As the agent's process does; undone, because other tests leave their orphans to init."""
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@contextlib.asynccontextmanager
async def supervised(folder: Path, script: str, patience: Patience = QUICK, cores: tuple[int, ...] = ()) -> AsyncIterator[Child]:
    """A child that runs `script`, which may use `serve()`."""
    source = folder / "child.py"
    source.write_text(ANSWERS + textwrap.dedent(script))
    port = free_port()
    program = Program(
        name="engine",
        command=(sys.executable, "-S", "-u", str(source), str(port), str(folder / "hang")),
        environment=dict(os.environ),
        log=folder / "logs" / "cell-1-engine.log",
        health_url=f"http://127.0.0.1:{port}/healthz",
        cores=cores,
    )
    async with aiohttp.ClientSession() as session:
        child = Child(program, session, "token", patience)
        life = asyncio.create_task(child.run())
        try:
            yield child
        finally:
            life.cancel()
            await asyncio.wait((life,))


def exists(pid: int) -> bool:
    """Also true of a zombie."""
    return Path(f"/proc/{pid}").exists()


async def test_a_child_that_answers_is_healthy_and_ends_with_its_supervisor(tmp_path: Path) -> None:
    async with supervised(tmp_path, "serve()") as child:
        await until(lambda: child.healthy, "healthy")
        pid = child.pid
        assert os.getpgid(pid) == pid
        assert os.getpgid(pid) != os.getpgid(0)
    assert not exists(pid)


async def test_a_child_keeps_to_its_cores(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    async with supervised(tmp_path, "serve()", cores=(core,)) as child:
        await until(lambda: child.healthy, "healthy")
        assert os.sched_getaffinity(child.pid) == {core}


async def test_a_killed_child_comes_back_as_another_incarnation(tmp_path: Path) -> None:
    async with supervised(tmp_path, "serve()") as child:
        await until(lambda: child.healthy, "healthy")
        first, pid = child.incarnation, child.pid
        os.kill(pid, 9)
        await until(lambda: child.healthy and child.incarnation != first, "healthy again")
        assert not exists(pid)
        assert child.starts == 2


async def test_a_child_that_crashes_at_once_is_given_up_after_five_restarts_with_its_last_words(tmp_path: Path) -> None:
    seen: list[Health] = []
    async with supervised(tmp_path, "print('no such model'); sys.exit(3)") as child:
        child.on_change = lambda: seen.append(child.health)
        await until(lambda: child.health is Health.FAILED, "failed")
        assert child.starts == 6
        assert "engine ended with code 3" in child.reason
        assert "no such model" in child.reason
        assert str(child.program.log) in child.reason
    assert seen[-1] is Health.FAILED


async def test_a_program_that_does_not_exist_is_given_up_with_the_reason(tmp_path: Path) -> None:
    program = Program("trainer", ("/nonexistent/python",), dict(os.environ), tmp_path / "log", "http://127.0.0.1:9/healthz")
    async with aiohttp.ClientSession() as session:
        child = Child(program, session, "token", QUICK)
        await asyncio.wait_for(child.run(), DEADLINE_SECONDS)
    assert "/nonexistent/python" in child.reason


async def test_a_hung_child_is_killed_and_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path, "serve()") as child:
        await until(lambda: child.healthy, "healthy")
        first, pid = child.incarnation, child.pid
        (tmp_path / "hang").touch()
        await until(lambda: child.health is not Health.HEALTHY, "found to hang")
        (tmp_path / "hang").unlink()
        await until(lambda: child.healthy and child.incarnation != first, "healthy again")
        assert not exists(pid)


async def test_a_child_that_never_gets_healthy_is_ended_after_its_allowance(tmp_path: Path) -> None:
    async with supervised(tmp_path, "time.sleep(1000)", replace(QUICK, start_seconds=0.1, restarts=1)) as child:
        await until(lambda: child.health is Health.FAILED, "failed")
        assert "gave no healthy answer" in child.reason


async def test_a_child_that_ignores_term_is_killed(tmp_path: Path) -> None:
    async with supervised(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN); serve()") as child:
        await until(lambda: child.healthy, "healthy")
        pid, began = child.pid, time.monotonic()
    assert not exists(pid)
    assert time.monotonic() - began < 5.0


async def test_a_child_that_is_told_to_end_ends_its_own_children_itself(tmp_path: Path) -> None:
    """An engine whose core is told at the same time takes its end for a death."""
    script = """
    told = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True)); print('up', flush=True); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-S", "-c", told])
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.1), print("ended", flush=True), sys.exit()))
    serve()
    """
    async with supervised(tmp_path, script) as child:
        await until(lambda: child.healthy and "up" in child.program.log.read_text(), "both are up")
    assert child.program.log.read_text().split() == ["up", "ended"]


@pytest.mark.usefixtures("adopting")
@pytest.mark.parametrize("how", ["the supervisor ends", "the child is killed"])
async def test_grandchildren_end_with_the_child_and_leave_no_zombie(tmp_path: Path, how: str) -> None:
    script = """
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    grandchild = subprocess.Popen([sys.executable, "-S", "-c", deaf])
    print(grandchild.pid)
    serve()
    """
    async with supervised(tmp_path, script) as child:
        await until(lambda: child.healthy, "healthy")
        pid = child.pid
        grandchild = int(child.program.log.read_text().split()[0])
        assert exists(grandchild)
        if how == "the child is killed":
            os.kill(pid, 9)
            await until(lambda: not exists(grandchild), "the grandchild is gone")
    assert not exists(pid)
    assert not exists(grandchild)


async def test_a_child_that_does_not_obey_can_be_restarted(tmp_path: Path) -> None:
    async with supervised(tmp_path, "serve()") as child:
        await until(lambda: child.healthy, "healthy")
        first = child.incarnation
        child.restart("did not sleep")
        await until(lambda: child.healthy and child.incarnation != first, "healthy again")
        assert child.reason == "engine did not sleep"


async def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent = f"""
import asyncio, pathlib, sys
from tidemill_cell.process_group import ProcessGroup
async def main():
    group = await ProcessGroup.start((sys.executable, "-S", "-c", "import time; time.sleep(1000)"), {{}}, (), pathlib.Path({str(tmp_path / "log")!r}))
    print(group.pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    pid = int(await asyncio.wait_for(process.stdout.readline(), DEADLINE_SECONDS))
    assert exists(pid)
    process.kill()
    await process.wait()
    await until(lambda: not _runs(pid), "the child died with its parent")


async def test_a_group_that_has_ended_by_itself_can_be_ended(tmp_path: Path) -> None:
    group = await ProcessGroup.start((sys.executable, "-S", "-c", "pass"), {}, (), tmp_path / "log")
    assert await group.ended() == "ended with code 0"
    await group.end(0.1)


def test_failures_in_a_row_are_counted_until_the_child_was_steady() -> None:
    patience = Patience(steady_seconds=60.0, restarts=5, first_pause_seconds=0.5, longest_pause_seconds=4.0)
    failures, pauses = Failures(), []
    for _ in range(6):
        failures = failures.after(1.0, patience)
        pauses.append(failures.pause(patience))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, None]
    assert failures.after(60.0, patience) == Failures(1)


def test_the_last_lines_of_a_log_are_the_last(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n" for n in range(10_000)))
    lines = last_lines(log).splitlines()
    assert lines[-1] == "line 9999"
    assert len(lines) == 20
    assert "cannot be read" in last_lines(tmp_path / "none")


def _runs(pid: int) -> bool:
    """A zombie, whose parent is not ours to wait for, runs no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""The agent as sandboxes run it: a program of its own, against a server that plays the model."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tidemill_rollout.harness import react

SECONDS = 30.0


@dataclass
class Script:
    """Plays the model: each request takes the next entry, a reply's text or a whole response."""

    replies: Sequence[str | web.Response]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        reply = self.replies[min(len(self.bodies), len(self.replies)) - 1]
        return completion(reply) if isinstance(reply, str) else reply

    @property
    def last_said(self) -> str:
        """What the agent said last before it asked again."""
        said: str = self.bodies[-1]["messages"][-1]["content"]
        return said


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


def completion(text: str | None) -> web.Response:
    return web.json_response({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]})


@asynccontextmanager
async def served(script: Script) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/x/exec-7/v1/chat/completions", script.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/x/exec-7"
    finally:
        await runner.cleanup()


async def started(base_url: str, folder: Path, python: str = sys.executable, **environment: str) -> Ended:
    instruction = folder.parent / "instruction.md"
    instruction.write_text("Read rooms.txt. What is the room number of Mara?\n")
    variables = {
        "PATH": os.defpath,
        "TIDEMILL_BASE_URL": base_url,
        "TIDEMILL_API_KEY": "key-7",
        "TIDEMILL_MODEL": "policy",
        "TIDEMILL_INSTRUCTION_FILE": str(instruction),
        **environment,
    }
    process = await asyncio.create_subprocess_exec(
        *(python, "-I", "-S", react.__file__),
        cwd=folder,
        env={name: value for name, value in variables.items() if value},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, output.decode(), errors.decode())


async def played(folder: Path, *replies: str | web.Response, **environment: str) -> tuple[Ended, Script]:
    script = Script(replies)
    async with served(script) as base_url:
        return await started(base_url, folder, **environment), script


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "rooms.txt").write_text("Mara: 41\n")
    return folder


async def test_it_shows_what_a_command_printed_and_keeps_the_answer(work: Path) -> None:
    ended, script = await played(work, "RUN: cat rooms.txt", "ANSWER: 41")
    assert ended.status == 0
    assert (work / "answer.txt").read_text() == "41\n"
    assert script.bodies[0]["messages"] == react.opening("Read rooms.txt. What is the room number of Mara?")
    assert script.bodies[1]["messages"] == [
        *script.bodies[0]["messages"],
        {"role": "assistant", "content": "RUN: cat rooms.txt"},
        {"role": "user", "content": "Mara: 41"},
    ]


async def test_it_asks_for_its_model_with_its_own_key_and_leaves_sampling_to_the_job(work: Path) -> None:
    _, script = await played(work, "ANSWER: 1")
    assert script.headers[0]["Authorization"] == "Bearer key-7"
    assert set(script.bodies[0]) == {"model", "messages"}
    assert script.bodies[0]["model"] == "policy"


async def test_a_reply_outside_the_protocol_gets_a_reminder(work: Path) -> None:
    _, script = await played(work, "I would look into the file.", "ANSWER: 41")
    assert script.last_said == react.REMINDER


async def test_a_command_that_fails_shows_its_error(work: Path) -> None:
    _, script = await played(work, "RUN: cat nothing.txt", "ANSWER: 41")
    assert "No such file" in script.last_said


async def test_a_command_that_never_stops_printing_is_cut_and_killed(work: Path) -> None:
    _, script = await played(work, "RUN: yes", "ANSWER: 41")
    assert script.last_said == react.shown("y\n" * 1000)


async def test_a_command_gets_no_input(work: Path) -> None:
    _, script = await played(work, "RUN: cat", "ANSWER: 41")
    assert script.last_said == "(no output)"


async def test_commands_run_in_the_work_folder_and_leave_files_for_the_next(work: Path) -> None:
    _, script = await played(work, "RUN: cp rooms.txt copy.txt", "RUN: cat copy.txt", "ANSWER: 41")
    assert script.last_said == "Mara: 41"


async def test_without_an_answer_it_stops_after_its_turns_and_writes_none(work: Path) -> None:
    ended, script = await played(work, "RUN: true", TIDEMILL_MAX_TURNS="3")
    assert (ended.status, len(script.bodies)) == (0, 3)
    assert not (work / "answer.txt").exists()


async def test_an_empty_reply_counts_as_one_outside_the_protocol(work: Path) -> None:
    _, script = await played(work, completion(None), "ANSWER: 41")
    assert script.last_said == react.REMINDER


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_an_overloaded_model_is_asked_the_same_again(work: Path, status: int) -> None:
    ended, script = await played(work, web.Response(status=status, headers={"Retry-After": "0"}), "ANSWER: 41")
    assert ended.status == 0
    assert len(script.bodies) == 2
    assert script.bodies[0] == script.bodies[1]


async def test_a_refused_request_ends_it_at_once_with_the_reason(work: Path) -> None:
    ended, script = await played(work, web.Response(status=401, text="no such execution"), "ANSWER: 41")
    assert (ended.status, len(script.bodies)) == (1, 1)
    assert "refused the request with 401: no such execution" in ended.errors


async def test_an_answer_that_is_no_chat_completion_ends_it(work: Path) -> None:
    ended, _ = await played(work, web.Response(text="<html>"))
    assert ended.status == 1
    assert "no chat completion" in ended.errors


async def test_a_model_that_stays_away_ends_it_when_patience_runs_out(work: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    ended = await started(address, work, TIDEMILL_PATIENCE_SECONDS="0.7")
    assert ended.status == 1
    assert "gave no answer in 0.7 s" in ended.errors
    assert "Connection refused" in ended.errors


async def test_a_missing_variable_is_named(work: Path) -> None:
    ended = await started("", work)
    assert ended.status == 2
    assert "TIDEMILL_BASE_URL" in ended.errors


async def test_the_oldest_python_found_here_that_must_do_does(work: Path) -> None:
    """Sandboxes bring a Python of their own, 3.9 or later."""
    script = Script(["RUN: cat rooms.txt", "ANSWER: 41"])
    async with served(script) as base_url:
        ended = await started(base_url, work, oldest_python())
    assert ended.status == 0, ended.errors
    assert (work / "answer.txt").read_text() == "41\n"


def oldest_python() -> str:
    """Of 3.9 to 3.11, on the path or under pyenv (whose shims are on the path even where the version behind them is not chosen); else this one."""
    for name in ("python3.9", "python3.10", "python3.11"):
        for path in (shutil.which(name), *Path.home().glob(f".pyenv/versions/*/bin/{name}")):
            if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                return str(path)
    return sys.executable


async def test_a_mess_of_the_models_own_making_is_told_to_it(work: Path) -> None:
    ended, script = await played(work, "RUN: mkdir answer.txt", "ANSWER: 41", "RUN: rmdir answer.txt", "ANSWER: 41")
    assert ended.status == 0
    assert "answer.txt cannot be written" in script.bodies[2]["messages"][-1]["content"]
    assert (work / "answer.txt").read_text() == "41\n"


async def test_a_command_that_cannot_even_start_is_told_to_it(work: Path) -> None:
    _, script = await played(work, "RUN: ls \0", "ANSWER: 41")
    assert "cannot be run" in script.last_said


async def test_an_answer_in_broken_unicode_is_kept_as_well_as_it_can_be(work: Path) -> None:
    await played(work, "ANSWER: 4\ud83d1")
    assert (work / "answer.txt").read_text() == "4?1\n"


def test_a_command_out_of_time_is_killed_with_what_it_started(work: Path) -> None:
    said = react.run("sleep 60 & echo $!; wait", work, seconds=0.3)
    try:
        process = os.pidfd_open(int(said))
    except ProcessLookupError:
        return  # dead and buried
    with os.fdopen(process):
        assert select.select([process], [], [], SECONDS)[0], "the sleep outlived the command"


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("RUN: ls", react.Run("ls")),
        ("  ANSWER:41 ", react.Answer("41")),
        ("Let me look.\nRUN: cat a: b\nANSWER: 1", react.Run("cat a: b")),
        ("ANSWER: Mara: 41", react.Answer("Mara: 41")),
        ("RUN:", None),
        ("run: ls", None),
        ("41", None),
        ("", None),
    ],
)
def test_the_first_line_that_follows_the_protocol_is_the_move(reply: str, wanted: react.Run | react.Answer | None) -> None:
    assert react.move(reply) == wanted

"""A small agent that any chat model can drive: it asks for one line at a time, runs it if it is a command, and stops at an answer.

One file, standard library only, Python 3.9 or later: it is shown to sandboxes and started as a program there. The model talks plain text:

    RUN: cat ages.txt        the agent runs the command in the work folder and shows what it printed
    ANSWER: 52               the agent writes 52 to answer.txt and stops

Anything else is answered with a reminder. Environment: TIDEMILL_BASE_URL (the chat API, without /v1), TIDEMILL_API_KEY, TIDEMILL_MODEL,
TIDEMILL_INSTRUCTION_FILE, and optionally TIDEMILL_MAX_TURNS and TIDEMILL_PATIENCE_SECONDS (how long an unreachable model is asked again).
The work folder is the current one. Exit status: 0 the model answered or used up its turns, 1 the model could not be asked, 2 a variable is missing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ANSWER_FILE = "answer.txt"
MAX_TURNS = 4
PATIENCE_SECONDS = 900.0

# One worked example shows the protocol: a small model learns more from it than from a description, and it costs fewer tokens.
OPENING = (
    {"role": "system", "content": "You have a shell."},
    {"role": "user", "content": "Read ages.txt. What is the age of Pia?"},
    {"role": "assistant", "content": "RUN: cat ages.txt"},
    {"role": "user", "content": "Pia: 52"},
    {"role": "assistant", "content": "ANSWER: 52"},
)
REMINDER = "Reply with RUN: and a command, or with ANSWER: and the answer."

COMMAND_SECONDS = 20.0
CALL_SECONDS = 900.0
OUTPUT_BYTES = 64 * 1024  # read of a command that never stops printing
SHOWN_CHARACTERS = 200  # of it, shown to the model
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0


class Run(NamedTuple):
    command: str


class Answer(NamedTuple):
    text: str


class ModelError(Exception):
    """The model gave no answer, and asking again would not help."""


def opening(instruction: str) -> list[dict[str, str]]:
    """The conversation as it starts: the worked example, then the task."""
    return [*OPENING, {"role": "user", "content": instruction.strip()}]


def move(reply: str) -> Run | Answer | None:
    """What the model wants: its first line that follows the protocol, or None."""
    for line in reply.splitlines():
        word, _, rest = line.strip().partition(":")
        if word == "RUN" and rest.strip():
            return Run(rest.strip())
        if word == "ANSWER" and rest.strip():
            return Answer(rest.strip())
    return None


def shown(output: str) -> str:
    """What the model sees of a command's output: the beginning, and something even where there is nothing."""
    text = output.strip()
    if len(text) > SHOWN_CHARACTERS:
        return text[:SHOWN_CHARACTERS] + " ..."
    return text or "(no output)"


def run(command: str, folder: Path, seconds: float = COMMAND_SECONDS) -> str:
    """What a command prints. It gets no input and little time, and what it leaves behind in its session ends with it."""
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except (OSError, ValueError) as problem:  # the work folder is gone, or the command holds a zero byte
        return f"cannot be run: {problem}"
    clock = threading.Timer(seconds, _kill_session, [process])
    clock.start()
    with process:
        output: bytes = process.stdout.read(OUTPUT_BYTES) if process.stdout else b""
        clock.cancel()
        _kill_session(process)  # before it is waited for: until then nobody else can have its number
    return output.decode(errors="replace")


def solve(instruction: str, folder: Path, ask: Callable[[list[dict[str, str]]], str], turns: int = MAX_TURNS) -> Answer | None:
    """The whole conversation. Returns the answer, already written to the folder, or None if the turns ran out."""
    messages = opening(instruction)
    for turn in range(1, turns + 1):
        reply = ask(messages)
        print(f"turn {turn}: {reply!a}", flush=True)
        wanted = move(reply)
        if isinstance(wanted, Answer):
            try:
                (folder / ANSWER_FILE).write_bytes(wanted.text.encode(errors="replace") + b"\n")
            except OSError as problem:  # the model's own doing: it made a folder of that name, say
                said = f"{ANSWER_FILE} cannot be written: {problem}"
            else:
                return wanted
        elif isinstance(wanted, Run):
            said = shown(run(wanted.command, folder))
        else:
            said = REMINDER
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": said}]
    return None


class Model:
    """One chat model behind an OpenAI-compatible address."""

    def __init__(self, base_url: str, key: str, name: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.url = base_url.rstrip("/") + "/v1/chat/completions"
        self.key = key
        self.name = name
        self.patience_seconds = patience_seconds
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the gateway is never behind the sandbox's proxy

    def ask(self, messages: list[dict[str, str]]) -> str:
        """One reply. A model that is away or overloaded is asked again, with growing pauses, while patience lasts.

        Raises:
            ModelError: the request was refused, the reply is no chat completion, or patience ran out.
        """
        body = json.dumps({"model": self.name, "messages": messages}).encode()
        deadline = time.monotonic() + self.patience_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return _content(self._post(body), self.url)
            except urllib.error.HTTPError as error:
                text = error.read(2000).decode(errors="replace")
                if error.code < 500 and error.code not in (408, 429):
                    raise ModelError(f"{self.url} refused the request with {error.code}: {text}") from error
                problem, wait = f"{error.code} {text}", _seconds(error.headers.get("Retry-After"))
            except (OSError, http.client.HTTPException) as error:
                problem, wait = repr(error), None
            wait = min(LONGEST_PAUSE_SECONDS, pause if wait is None else wait)
            if time.monotonic() + wait > deadline:
                raise ModelError(f"{self.url} gave no answer in {self.patience_seconds:g} s; the last try ended with {problem}")
            print(f"asking again in {wait:g} s: {problem}", file=sys.stderr, flush=True)
            time.sleep(wait)
            pause *= 2

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        with self._direct.open(urllib.request.Request(self.url, body, headers), timeout=CALL_SECONDS) as answer:
            data: bytes = answer.read()
            return data


def main() -> int:
    try:
        base_url = os.environ["TIDEMILL_BASE_URL"]
        key = os.environ["TIDEMILL_API_KEY"]
        name = os.environ["TIDEMILL_MODEL"]
        instruction = Path(os.environ["TIDEMILL_INSTRUCTION_FILE"]).read_text(encoding="utf-8")
    except KeyError as missing:
        print(f"react: the environment variable {missing.args[0]} is not set", file=sys.stderr)
        return 2
    model = Model(base_url, key, name, float(os.environ.get("TIDEMILL_PATIENCE_SECONDS", PATIENCE_SECONDS)))
    try:
        answer = solve(instruction, Path.cwd(), model.ask, int(os.environ.get("TIDEMILL_MAX_TURNS", MAX_TURNS)))
    except ModelError as error:
        print(f"react: {error}", file=sys.stderr)
        return 1
    print("no answer" if answer is None else f"answer: {answer.text!a}")
    return 0


def _content(body: bytes, url: str) -> str:
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{url} answered with something that is no chat completion: {body[:200]!r}") from error
    return content or ""


def _seconds(header: str | None) -> float | None:
    return float(header) if header and header.isdigit() else None


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

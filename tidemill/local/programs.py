"""Agent programs that come from npm: each version is installed once for each user of a machine, by that user, and never shipped with Tidemill."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemill.api.model import amount
from tidemill.api.rljob import HarnessSpec, RLJobSpec
from tidemill.api.rules import Violation
from tidemill.local.parent import die_with_parent

INSTALL_SECONDS = 900.0


class ProgramUnavailable(Exception):
    """The agent program cannot be installed. The text says what is missing."""


@dataclass(frozen=True, slots=True)
class Program:
    """One agent program as its registry has it."""

    preset: str
    package: str
    command: str
    version: str  # that the tests run; the one that is installed where the manifest names none
    memory: str  # that it takes at a small task, measured, and some more
    needs_node: bool = False  # to run; all of them are installed by npm


PROGRAMS = {
    program.preset: program
    for program in (
        Program("claude-code", "@anthropic-ai/claude-code", "claude", "2.1.220", "384Mi"),
        Program("codex", "@openai/codex", "codex", "0.171.0", "128Mi", needs_node=True),
        Program("qwen-code", "@qwen-code/qwen-code", "qwen", "0.15.10", "1Gi", needs_node=True),
        Program("opencode", "opencode-ai", "opencode", "1.18.33", "768Mi"),
    )
}


def folder(harness: HarnessSpec) -> Path:
    """Where the manifest's version of the program lies, or would."""
    program = PROGRAMS[harness.preset]
    return _cache() / f"{program.preset}@{harness.version or program.version}"


def executable(harness: HarnessSpec) -> Path:
    return folder(harness) / "node_modules" / ".bin" / PROGRAMS[harness.preset].command


def missing(harness: HarnessSpec) -> Iterator[Violation]:
    """What this machine lacks to install and to run the program, before anything is tried."""
    program = PROGRAMS.get(harness.preset)
    if program is None:
        return
    if not executable(harness).exists() and shutil.which("npm") is None:
        yield Violation(
            "spec.harness.preset",
            f"is {program.preset}, whose program npm installs, but there is no npm on this machine; install Node.js with npm (apt install npm)",
        )
    elif program.needs_node and shutil.which("node") is None:
        yield Violation("spec.harness.preset", f"is {program.preset}, which runs on Node.js, but there is no node on this machine; install it")


def cramped(spec: RLJobSpec) -> Iterator[Violation]:
    """Whether the sandbox would end the program for its memory before it has done anything."""
    program = PROGRAMS.get(spec.harness.preset)
    memory = spec.sandbox.resources.memory
    if program is not None and amount(memory) < amount(program.memory):
        yield Violation(
            "spec.sandbox.resources.memory",
            f"is {memory}, but {program.preset} takes up to {program.memory} by itself; give it that and what tasks need",
        )


def install(harness: HarnessSpec, say: Callable[[str], None]) -> None:
    """Have the program in its folder: at once where it is there already, else by npm, with whatever the user's npm is set up with.

    Raises:
        ProgramUnavailable
    """
    program = PROGRAMS.get(harness.preset)
    if program is None or executable(harness).exists():
        return
    wanted = f"{program.package}@{harness.version or program.version}"
    npm = shutil.which("npm")
    if npm is None:
        raise ProgramUnavailable(f"spec.harness.preset is {program.preset}, but there is no npm to install {wanted}; install Node.js with npm")
    target = folder(harness)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.parent):
        if executable(harness).exists():  # another job has installed it meanwhile
            return
        say(f"installing {wanted} with npm, once, into {target}")
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as unfinished:
            _npm(npm, Path(unfinished), wanted)
            if not (Path(unfinished) / executable(harness).relative_to(target)).exists():
                raise ProgramUnavailable(f"{wanted}: the package has no program {program.command}; choose another spec.harness.version")
            shutil.rmtree(target, ignore_errors=True)
            os.rename(unfinished, target)
            Path(unfinished).mkdir()  # for the context's own clean-up
    say(f"installed {wanted}")


def _npm(npm: str, into: Path, wanted: str) -> None:
    into.chmod(0o755)
    words = [npm, "install", "--prefix", str(into), "--no-audit", "--no-fund", "--no-save", "--loglevel", "error", wanted]
    try:
        done = subprocess.run(
            words, cwd=into, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_SECONDS, check=False, preexec_fn=die_with_parent
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise ProgramUnavailable(f"{wanted} cannot be installed: {cause}") from cause
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())[-600:]
        raise ProgramUnavailable(f"{wanted} cannot be installed: npm ended with {done.returncode}: {said or 'no reason given'}")


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemill" / "harnesses"

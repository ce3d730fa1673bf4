"""Tasks in Harbor's layout: a folder with task.toml, instruction.md, environment/, tests/test.sh and, for people, solution/.

Of task.toml the parts are read that a jail on one machine can honour; the rest is another platform's and is let pass. What would change
what the task asks for (several steps, another operating system, a verifier in an image of its own) is refused by name.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERIFIER_SECONDS = 600.0  # Harbor's default; an agent has none
LONGEST_SECONDS = 1e7
_CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{\w+(:-(?P<default>[^}]*))?\}")


class TaskError(Exception):
    """A task, or the source it comes from, is not as it must be. The text names it, says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    folder: Path
    instruction: str
    agent_seconds: float = math.inf  # the task's own time-out; the job's holds too
    verifier_seconds: float = VERIFIER_SECONDS
    environment: tuple[tuple[str, str], ...] = ()  # variables the harness and the tests see
    verifier_environment: tuple[tuple[str, str], ...] = ()  # variables only the tests see
    image: str = ""  # of its pods; one machine runs every task on its own programs

    @property
    def files(self) -> Path:
        """What lies in the work folder when an execution starts. May not exist: then the work folder is empty."""
        return self.folder / "environment"

    @property
    def tests(self) -> Path:
        return self.folder / "tests"


BUILD_FILES = frozenset({"Dockerfile", ".dockerignore", "docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml"})
"""Of environment/, what describes an image and is not part of the work."""


def load_tasks(source: str, base: Path, seed: int = 0, filter: str = "") -> tuple[Task, ...]:
    """All tasks of `source` whose name matches `filter`, in an order that depends on `seed` and the names only.

    `source` is path:DIR, where DIR (relative to `base`) is a task or holds tasks. `filter` is part of a name, or a pattern if it has *, ? or [.

    Raises:
        TaskError
    """
    kind, _, place = source.partition(":")
    if kind != "path" or not place:
        raise TaskError(f"tasks {source!r}: unknown kind of source; use path:DIR, a folder of tasks in Harbor's layout")
    folder = base / place
    if not folder.is_dir():
        raise TaskError(f"tasks {source!r}: there is no folder {folder}")
    tasks = [load_task(path) for path in _folders(folder, source)]
    by_name: dict[str, Task] = {}
    for task in tasks:
        other = by_name.setdefault(task.name, task)
        if other is not task:
            raise TaskError(f"task {task.name}: both {other.folder} and {task.folder} have this name; change [task] name in one task.toml")
    chosen = [task for task in tasks if _matches(task.name, filter)]
    if not chosen:
        names = ", ".join(sorted(by_name)[:5])
        raise TaskError(f"tasks {source!r}: none of {len(tasks)} matches filter {filter!r}; their names begin with {names}")
    return tuple(sorted(chosen, key=lambda task: hashlib.sha256(f"{seed}:{task.name}".encode()).digest()))


def load_task(folder: Path) -> Task:
    """One task. Raises `TaskError`."""
    configuration = _configuration(folder)
    name = _text(folder, configuration, "task", "name") or folder.name
    where = f"task {name} ({folder})"
    if not name.isprintable():
        raise TaskError(f"task {name!r} ({folder}): the name has a character that cannot be shown; change [task] name in task.toml")
    if configuration.get("steps"):
        raise TaskError(f"{where}: task.toml has [[steps]]; tasks of several steps are not supported, make it one task")
    if (system := _text(folder, configuration, "environment", "os") or "linux").lower() != "linux":
        raise TaskError(f"{where}: task.toml wants [environment] os = {system!r}; only linux is supported")
    if _text(folder, configuration, "verifier", "environment_mode") == "separate":
        raise TaskError(
            f"{where}: task.toml wants [verifier] environment_mode = 'separate', an image of its own for the tests; only 'shared' is supported"
        )
    if not (folder / "tests" / "test.sh").is_file():
        raise TaskError(f"{where}: tests/test.sh is missing; it must write the reward to /logs/verifier/reward.txt or reward.json")
    return Task(
        name=name,
        folder=folder.resolve(),
        instruction=_instruction(folder, where),
        agent_seconds=_seconds(where, configuration, "agent", math.inf),
        verifier_seconds=_seconds(where, configuration, "verifier", VERIFIER_SECONDS),
        environment=_variables(where, configuration, "environment"),
        verifier_environment=_variables(where, configuration, "verifier"),
        image=_text(folder, configuration, "environment", "docker_image"),
    )


def _folders(folder: Path, source: str) -> list[Path]:
    if (folder / "task.toml").is_file():
        return [folder]
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))
    if not found:
        raise TaskError(f"tasks {source!r}: {folder} holds no tasks; each is a folder with task.toml, instruction.md and tests/test.sh")
    return found


def _configuration(folder: Path) -> dict[str, Any]:
    path = folder / "task.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TaskError(f"task {folder.name}: {path} is missing; an empty file will do") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise TaskError(f"task {folder.name}: {path} is not TOML: {problem}") from problem


def _instruction(folder: Path, where: str) -> str:
    """Without the canary lines some benchmarks begin with; agents are not to see those."""
    try:
        lines = (folder / "instruction.md").read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise TaskError(f"{where}: instruction.md is missing; write what the agent is to do") from None
    except UnicodeDecodeError as problem:
        raise TaskError(f"{where}: instruction.md is not UTF-8: {problem}") from problem
    while lines and _CANARY.match(lines[0].strip()):
        lines.pop(0)
    text = "\n".join(lines).strip()
    if not text:
        raise TaskError(f"{where}: instruction.md is empty; write what the agent is to do")
    if "\0" in text:
        raise TaskError(f"{where}: instruction.md has a NUL character, which no program can be given; remove it")
    return text


def _section(where: str, configuration: dict[str, Any], name: str) -> dict[str, Any]:
    section = configuration.get(name, {})
    if not isinstance(section, dict):
        raise TaskError(f"{where}: task.toml: {name} is {section!r}, it must be a table [{name}]")
    return section


def _text(folder: Path, configuration: dict[str, Any], section: str, name: str) -> str:
    where = f"task {folder.name} ({folder})"
    value = _section(where, configuration, section).get(name, "")
    if not isinstance(value, str):
        raise TaskError(f"{where}: task.toml: [{section}] {name} is {value!r}, it must be text")
    return value


def _seconds(where: str, configuration: dict[str, Any], section: str, default: float) -> float:
    table = _section(where, configuration, section)
    if "timeout_sec" not in table:
        return default
    value = table["timeout_sec"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_SECONDS:
        raise TaskError(
            f"{where}: task.toml: [{section}] timeout_sec is {value!r}, it must be a number of seconds above 0, at most {LONGEST_SECONDS:g}"
        )
    return float(value)


def _variables(where: str, configuration: dict[str, Any], section: str) -> tuple[tuple[str, str], ...]:
    variables = _section(where, configuration, section).get("env", {})
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise TaskError(f"{where}: task.toml: [{section}.env] must be a table of texts")
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise TaskError(
                f"{where}: task.toml: [{section}.env] {name!r} is no name of a variable; use letters, digits and underscores, no digit first"
            )
        if "\0" in value:
            raise TaskError(f"{where}: task.toml: [{section}.env] {name} has a NUL character, which no program can be given; remove it")
    return tuple((name, _resolved(where, section, name, value)) for name, value in variables.items())


def _resolved(where: str, section: str, name: str, value: str) -> str:
    """Harbor fills ${NAME} from the caller's environment. Here that would hand the user's secrets to a jail, so only its default is taken."""

    def default(found: re.Match[str]) -> str:
        if found["default"] is None:
            raise TaskError(
                f"{where}: task.toml: [{section}.env] {name} takes {found[0]} from your environment, which jails never see; write the value"
            )
        return found["default"]

    return _REFERENCE.sub(default, value)


def _matches(name: str, filter: str) -> bool:
    return fnmatch.fnmatchcase(name, filter) if any(sign in filter for sign in "*?[") else filter in name

"""How each agent program is started in a sandbox: its command, its environment, and what of this machine it must see."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tidemill.api.rljob import RLJob
from tidemill_rollout.harness import react
from tidemill_rollout.sandbox.process import Launch, environment_folders, interpreter
from tidemill_rollout.tasks.source import Task

MODEL = "policy"
"""Every harness asks for this model; the gateway serves the policy whatever is asked for."""

INSTRUCTION = "/run/harness/instruction.md"
REACT = "/run/harness/react.py"
MINI_STEPS = 50
"""mini-swe-agent's own bound is a price, and ours costs nothing; the context's length and the time-out bound it too."""


class HarnessError(Exception):
    """The manifest's harness cannot be started. The text says what to change."""


def launch(job: RLJob, task: Task, base_url: str, key: str, instruction: Path) -> Launch:
    """How to start the job's harness on `task`. `base_url` is the execution's at the gateway, without /v1; `instruction` a file with the task's text.

    Every program gets the variables that `react.py` describes, besides its own.

    Raises:
        HarnessError
    """
    return _launch(PRESETS, job, task, base_url, key, instruction)


def launch_in_image(job: RLJob, task: Task, base_url: str, key: str, instruction: Path) -> Launch:
    """The same for a pod, whose image has the programs; `files` are this machine's, to be brought there.

    Raises:
        HarnessError
    """
    return _launch(IN_IMAGES, job, task, base_url, key, instruction)


def _launch(presets: Mapping[str, Preset], job: RLJob, task: Task, base_url: str, key: str, instruction: Path) -> Launch:
    preset = presets.get(job.spec.harness.preset)
    if preset is None:
        raise HarnessError(f"spec.harness.preset is {job.spec.harness.preset!r}; there are {', '.join(presets)}")
    started = preset(job, task, base_url, key)
    common = {
        "TIDEMILL_BASE_URL": base_url,
        "TIDEMILL_API_KEY": key,
        "TIDEMILL_MODEL": MODEL,
        "TIDEMILL_INSTRUCTION_FILE": INSTRUCTION,
        "TIDEMILL_TASK": task.name,
    }
    environment = {**dict(task.environment), **common, **started.environment, **job.spec.harness.env}
    return Launch(started.command, environment, started.programs, {INSTRUCTION: instruction, **started.files})


def check(job: RLJob, in_image: bool = False) -> Launch:
    """A launch as every execution will have it. Raises `HarnessError` now for what would fail at each."""
    folder = Path("/")
    started = launch_in_image if in_image else launch
    return started(job, Task("check", folder, "check"), "http://127.0.0.1", "key", folder / "instruction.md")


def _react(job: RLJob, task: Task, base_url: str, key: str) -> Launch:
    return Launch((interpreter(), "-I", "-S", REACT), {}, files={REACT: Path(react.__file__).resolve()})


def _react_in_image(job: RLJob, task: Task, base_url: str, key: str) -> Launch:
    return Launch(("python3", "-I", "-S", REACT), {}, files={REACT: Path(react.__file__).resolve()})


def _mini_swe_agent(job: RLJob, task: Task, base_url: str, key: str) -> Launch:
    """The console script `mini` as PyPI has it. Measured: 3.5 s of CPU time and 210 MB to start, nearly all for importing LiteLLM."""
    script = Path(sys.prefix) / "bin" / "mini"
    package = importlib.util.find_spec("minisweagent")
    if package is None or package.origin is None or not script.is_file():
        raise HarnessError(f"spec.harness.preset is mini-swe-agent, but {script} is missing; pip install 'tidemill[tasks]'")
    configuration = Path(package.origin).parent / "config" / "mini.yaml"  # by its whole path: one in the work folder would win
    command = (str(script), "-c", str(configuration), *_mini_options(task))
    return Launch(command, _mini_environment(base_url, key), programs=environment_folders())


def _mini_swe_agent_in_image(job: RLJob, task: Task, base_url: str, key: str) -> Launch:
    """The image must have `mini`, and its package where `python3` finds it: it knows the way to its own configuration."""
    find = "import importlib.util as u, os; print(os.path.join(os.path.dirname(u.find_spec('minisweagent').origin), 'config', 'mini.yaml'))"
    command = ("sh", "-c", f'configuration=$(python3 -I -c "{find}") && exec mini -c "$configuration" "$@"', "mini", *_mini_options(task))
    return Launch(command, _mini_environment(base_url, key))


def _mini_options(task: Task) -> tuple[str, ...]:
    limits = ("-c", f"agent.step_limit={MINI_STEPS}", "-c", "agent.cost_limit=0")
    return (*limits, "-m", f"openai/{MODEL}", "-t", task.instruction, "-y", "--exit-immediately", "-o", "/logs/agent/trajectory.json")


def _mini_environment(base_url: str, key: str) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": key,
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no look for a price list on the network at import
    }


def _generic(job: RLJob, task: Task, base_url: str, key: str) -> Launch:
    """Any program of this machine or, on a cluster, of the image: {instruction} in an argument stands for the task's text."""
    harness = job.spec.harness
    if not harness.command:
        raise HarnessError("spec.harness.preset is generic, but spec.harness.command is empty; write the program and its arguments")
    environment = {
        "OPENAI_API_KEY": key,
        "OPENAI_BASE_URL": f"{base_url}/v1",
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_BASE_URL": base_url,
    }
    return Launch(tuple(word.replace("{instruction}", task.instruction) for word in harness.command), environment)


Preset = Callable[[RLJob, Task, str, str], Launch]

PRESETS: dict[str, Preset] = {"react": _react, "mini-swe-agent": _mini_swe_agent, "generic": _generic}
IN_IMAGES: dict[str, Preset] = {"react": _react_in_image, "mini-swe-agent": _mini_swe_agent_in_image, "generic": _generic}

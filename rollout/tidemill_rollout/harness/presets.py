"""The agent programs that a job can name, and how the one that it names is started."""

from __future__ import annotations

from pathlib import Path

from tidemill.api.rljob import RLJob
from tidemill.local.programs import cramped
from tidemill_rollout.harness import claude_code, codex, generic, mini_swe_agent, opencode, qwen_code, react_preset
from tidemill_rollout.harness.identity import Identify, identify
from tidemill_rollout.harness.preset import MODEL, HarnessError, Preset, Start
from tidemill_rollout.sandbox.process import Launch
from tidemill_rollout.tasks.source import Task

__all__ = ["INSTRUCTION", "MODEL", "PRESETS", "HarnessError", "check", "identify_of", "launch", "launch_in_image"]

INSTRUCTION = "/run/harness/instruction.md"

PRESETS: dict[str, Preset] = {
    module.PRESET.name: module.PRESET for module in (react_preset, claude_code, codex, mini_swe_agent, qwen_code, opencode, generic)
}


def launch(job: RLJob, task: Task, base_url: str, key: str, instruction: Path) -> Launch:
    """How to start the job's harness on `task`. `base_url` is the execution's at the gateway, without /v1; `instruction` a file with the task's text.

    Every program gets the variables that `react.py` describes, besides its own.

    Raises:
        HarnessError
    """
    start = Start(job, task, base_url, key)
    return _complete(start, _preset(job).launch(start), instruction)


def launch_in_image(job: RLJob, task: Task, base_url: str, key: str, instruction: Path) -> Launch:
    """The same for a pod, whose image has the programs; `files` are this machine's, to be brought there.

    Raises:
        HarnessError
    """
    start = Start(job, task, base_url, key)
    return _complete(start, _preset(job).launch_in_image(start), instruction)


def check(job: RLJob, in_image: bool = False) -> Launch:
    """A launch as every execution will have it. Raises `HarnessError` now for what would fail at each."""
    lacking = next(cramped(job.spec), None)
    if lacking is not None:
        raise HarnessError(str(lacking))
    folder = Path("/")
    started = launch_in_image if in_image else launch
    return started(job, Task("check", folder, "check"), "http://127.0.0.1", "key", folder / "instruction.md")


def identify_of(harness: str) -> Identify:
    """Who calls, by the rule of this preset; one that is not known (a newer conductor's) has the wire's own."""
    preset = PRESETS.get(harness)
    return identify if preset is None else preset.identify


def _preset(job: RLJob) -> Preset:
    preset = PRESETS.get(job.spec.harness.preset)
    if preset is None:
        raise HarnessError(f"spec.harness.preset is {job.spec.harness.preset!r}; there are {', '.join(PRESETS)}")
    return preset


def _complete(start: Start, started: Launch, instruction: Path) -> Launch:
    common = {
        "TIDEMILL_BASE_URL": start.base_url,
        "TIDEMILL_API_KEY": start.key,
        "TIDEMILL_MODEL": MODEL,
        "TIDEMILL_INSTRUCTION_FILE": INSTRUCTION,
        "TIDEMILL_TASK": start.task.name,
    }
    environment = {**dict(start.task.environment), **common, **started.environment, **start.job.spec.harness.env}
    hold_seconds = _preset(start.job).hold_seconds
    return Launch(started.command, environment, started.programs, {INSTRUCTION: instruction, **started.files}, hold_seconds)

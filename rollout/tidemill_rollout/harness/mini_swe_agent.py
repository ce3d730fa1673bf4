"""Preset mini-swe-agent: the console script `mini` as PyPI has it. Measured: 3.5 s of CPU time and 210 MB to start, nearly all for importing LiteLLM.

Every call is one answer, not streamed, and a part of one is none: it asks again after a body that breaks off, a lost connection, a 429 or a 5xx.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from tidemill_rollout.harness.preset import MODEL, HarnessError, Preset, Start
from tidemill_rollout.sandbox.process import Launch, environment_folders
from tidemill_rollout.tasks.source import Task

STEPS = 50
"""mini-swe-agent's own bound is a price, and ours costs nothing; the context's length and the time-out bound it too."""


def launch(start: Start) -> Launch:
    script = Path(sys.prefix) / "bin" / "mini"
    package = importlib.util.find_spec("minisweagent")
    if package is None or package.origin is None or not script.is_file():
        raise HarnessError(f"spec.harness.preset is mini-swe-agent, but {script} is missing; pip install 'tidemill[tasks]'")
    configuration = Path(package.origin).parent / "config" / "mini.yaml"  # by its whole path: one in the work folder would win
    command = (str(script), "-c", str(configuration), *_options(start.task))
    return Launch(command, _environment(start), programs=environment_folders())


def launch_in_image(start: Start) -> Launch:
    """The image must have `mini`, and its package where `python3` finds it: it knows the way to its own configuration."""
    find = "import importlib.util as u, os; print(os.path.join(os.path.dirname(u.find_spec('minisweagent').origin), 'config', 'mini.yaml'))"
    command = ("sh", "-c", f'configuration=$(python3 -I -c "{find}") && exec mini -c "$configuration" "$@"', "mini", *_options(start.task))
    return Launch(command, _environment(start))


def _options(task: Task) -> tuple[str, ...]:
    limits = ("-c", f"agent.step_limit={STEPS}", "-c", "agent.cost_limit=0")
    return (*limits, "-m", f"openai/{MODEL}", "-t", task.instruction, "-y", "--exit-immediately", "-o", "/logs/agent/trajectory.json")


def _environment(start: Start) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": start.key,
        "OPENAI_BASE_URL": f"{start.base_url}/v1",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # no look for a price list on the network at import
    }


PRESET = Preset("mini-swe-agent", "chat", launch, launch_in_image)

"""Preset generic: any program of this machine or, on a cluster, of the image."""

from __future__ import annotations

from tidemill_rollout.harness.preset import HarnessError, Preset, Start
from tidemill_rollout.sandbox.process import Launch
from tidemill_rollout.sandbox.relay import HOLD_SECONDS


def launch(start: Start) -> Launch:
    """{instruction} in an argument stands for the task's text."""
    harness = start.job.spec.harness
    if not harness.command:
        raise HarnessError("spec.harness.preset is generic, but spec.harness.command is empty; write the program and its arguments")
    environment = {
        "OPENAI_API_KEY": start.key,
        "OPENAI_BASE_URL": f"{start.base_url}/v1",
        "ANTHROPIC_AUTH_TOKEN": start.key,
        "ANTHROPIC_BASE_URL": start.base_url,
    }
    return Launch(tuple(word.replace("{instruction}", start.task.instruction) for word in harness.command), environment)


PRESET = Preset("generic", "any", launch, launch, hold_seconds=HOLD_SECONDS)

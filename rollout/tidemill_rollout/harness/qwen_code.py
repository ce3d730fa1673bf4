"""Preset qwen-code: Alibaba's agent, on the chat wire, streamed.

It asks again after a 429, a 5xx and a connection lost before the answer. A stream that breaks off is fatal, so it is shown none that is not whole:
it has no watchdog but the time-out that is set here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tidemill_rollout.gateway.conversation import Ask
from tidemill_rollout.harness import npm
from tidemill_rollout.harness.identity import Identity, last_said
from tidemill_rollout.harness.preset import MODEL, Preset, Start
from tidemill_rollout.sandbox.process import Launch

SUMMARY = "generate the <state_snapshot>"
"""In the user message that asks for a compaction's summary."""

_OPTIONS = ("--yolo", "--auth-type", "openai", "--output-format", "stream-json")
_FIRST = 4
"""Messages before a sub-agent's first answer: its system message, the surroundings, an answer to them that is the harness's own, its task."""

_HOUR = 3_600_000
_PREPARE = 'mkdir -p "$HOME/.qwen" && printf %s "$TIDEMILL_QWEN_SETTINGS" > "$HOME/.qwen/settings.json"'


def launch(start: Start) -> Launch:
    return npm.here(start, _OPTIONS, _environment(start), _PREPARE)


def launch_in_image(start: Start) -> Launch:
    return npm.in_image(start, _OPTIONS, _environment(start), _PREPARE)


def identify(headers: Mapping[str, str], ask: Ask) -> Identity:
    """No header says who calls. Only the main agent has the tool that starts others; what a sub-agent is told first is its name."""
    agent = ""
    if ask.tools and all(tool.name != "agent" for tool in ask.tools):
        agent = hashlib.blake2b("\0".join(message.text for message in ask.messages[:_FIRST]).encode(errors="replace"), digest_size=10).hexdigest()
    return Identity(agent, summary=SUMMARY in last_said(ask))


def _environment(start: Start) -> dict[str, str]:
    generation = {"timeout": _HOUR, "maxRetries": 30, "contextWindowSize": start.job.spec.model.max_length}
    settings = {
        "model": {"generationConfig": generation, "skipNextSpeakerCheck": True},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},  # calls beside the task, about notes for later ones
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
    }
    return {
        "OPENAI_API_KEY": start.key,
        "OPENAI_BASE_URL": f"{start.base_url}/v1",
        "OPENAI_MODEL": MODEL,
        "TIDEMILL_QWEN_SETTINGS": json.dumps(settings),
    }


PRESET = Preset("qwen-code", "chat", launch, launch_in_image, identify, hold_seconds=0.9 * _HOUR / 1000)

"""Preset opencode: the open-source agent of that name, on the chat wire, streamed. A cut in the middle of an answer is asked for again."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidemill_rollout.gateway.conversation import Ask
from tidemill_rollout.harness import npm
from tidemill_rollout.harness.identity import Identity, header, last_said
from tidemill_rollout.harness.preset import MODEL, Preset, Start
from tidemill_rollout.sandbox.process import Launch

SUMMARY = "or that context was compacted"
"""In the user message that asks for a compaction's summary."""

_OPTIONS = ("run", "--title", "task", "--format", "json")  # with a title it does not ask the model for one


def launch(start: Start) -> Launch:
    return npm.here(start, _OPTIONS, _environment(start))


def launch_in_image(start: Start) -> Launch:
    return npm.in_image(start, _OPTIONS, _environment(start))


def identify(headers: Mapping[str, str], ask: Ask) -> Identity:
    """A sub-agent is a session of its own, with a parent: the main agent's, because those of sub-agents start no others."""
    agent = header(headers, "x-session-id") if "x-parent-session-id" in headers else ""
    return Identity(agent, summary=SUMMARY in last_said(ask))


def _environment(start: Start) -> dict[str, str]:
    spec = start.job.spec
    model = {"name": MODEL, "tool_call": True, "reasoning": True, "limit": {"context": spec.model.max_length, "output": spec.sampling.max_tokens}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # part of the program, nothing is fetched
        "options": {"baseURL": f"{start.base_url}/v1", "apiKey": start.key, "timeout": False},
        "models": {MODEL: model},
    }
    settings = {
        "provider": {"tidemill": provider},
        "model": f"tidemill/{MODEL}",
        "small_model": f"tidemill/{MODEL}",
        "permission": {"*": "allow"},
        "autoupdate": False,
        "share": "disabled",
    }
    switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(settings), **{f"OPENCODE_DISABLE_{name}": "1" for name in switches}}


PRESET = Preset("opencode", "chat", launch, launch_in_image, identify)

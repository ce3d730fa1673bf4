"""Preset claude-code: Anthropic's agent, on the Messages wire. Proprietary: whoever runs the job installs it, an image of ours never has it.

It asks again after 408, 409, 429, 5xx and a connection that ends before the first finished block, 30 times as it is set up here. A 400 or 413
is fatal, and so is a cut after a finished block of text: the gateway sends an answer in one burst.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill_rollout.gateway.conversation import Ask
from tidemill_rollout.harness import npm
from tidemill_rollout.harness.identity import Identity, header, last_said
from tidemill_rollout.harness.preset import MODEL, Preset, Start
from tidemill_rollout.sandbox.process import Launch

SUMMARY = "an <analysis> block followed by a <summary> block"
"""In what a compaction appends to the last user message. Sub-agents compact too, then with their own id in the header."""

_OPTIONS = ("-p", "--output-format", "stream-json", "--verbose", "--permission-mode", "bypassPermissions")
_HOUR = "3600000"
_MODELS = ("ANTHROPIC_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL", *(f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("OPUS", "SONNET", "HAIKU", "FABLE")))


def launch(start: Start) -> Launch:
    return npm.here(start, _OPTIONS, _environment(start))


def launch_in_image(start: Start) -> Launch:
    return npm.in_image(start, _OPTIONS, _environment(start))


def identify(headers: Mapping[str, str], ask: Ask) -> Identity:
    """Sub-agents name themselves in every call, and from the second level on who started them."""
    agent, parent = header(headers, "x-claude-code-agent-id"), header(headers, "x-claude-code-parent-agent-id")
    return Identity(agent, parent, SUMMARY in last_said(ask))


def _environment(start: Start) -> dict[str, str]:
    spec = start.job.spec
    return {
        "ANTHROPIC_BASE_URL": start.base_url,
        "ANTHROPIC_AUTH_TOKEN": start.key,
        **dict.fromkeys(_MODELS, MODEL),
        "IS_SANDBOX": "1",  # else it refuses to run without asking where an image's user is root
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a line whose hash differs from task to task, before everything else
        "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # a sub-agent's result comes as its tool's result
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(spec.model.max_length),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(spec.sampling.max_tokens),  # what it keeps free of the window
        "CLAUDE_CODE_MAX_RETRIES": "30",  # 11 are used up in 178 s
        "API_TIMEOUT_MS": _HOUR,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": _HOUR,
        "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS": _HOUR,
        "API_FORCE_IDLE_TIMEOUT": "0",
    }


PRESET = Preset("claude-code", "messages", launch, launch_in_image, identify)

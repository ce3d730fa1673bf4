"""Preset codex: OpenAI's agent, on the Responses wire.

It asks again after a 5xx, a lost connection and a stream that breaks; a 429 is fatal at once, so the gateway never says that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidemill_rollout.gateway.conversation import Ask
from tidemill_rollout.harness import npm
from tidemill_rollout.harness.identity import Identity, header, last_said
from tidemill_rollout.harness.preset import MODEL, Preset, Start
from tidemill_rollout.sandbox.process import Launch

SUMMARY = "CONTEXT CHECKPOINT COMPACTION"
"""In the user message that asks for a compaction's summary, where the provider is not OpenAI itself."""

_COMPACTS = re.compile(r'"request_kind": ?"compact')
_HOUR = 3_600_000
_HOME = "/logs/agent/codex"
_PREPARE = f"mkdir -p {_HOME}"


def launch(start: Start) -> Launch:
    return npm.here(start, _options(start), _environment(), _PREPARE)


def launch_in_image(start: Start) -> Launch:
    return npm.in_image(start, _options(start), _environment(), _PREPARE)


def identify(headers: Mapping[str, str], ask: Ask) -> Identity:
    """A sub-agent is a thread of its own inside the session, and names the thread that started it; the main agent's has the session's id."""
    parent = header(headers, "x-codex-parent-thread-id")
    summary = _COMPACTS.search(headers.get("x-codex-turn-metadata", "")) is not None or SUMMARY in last_said(ask)
    if not parent:
        return Identity(summary=summary)
    agent = header(headers, "thread-id") or header(headers, "x-codex-window-id").partition(":")[0]
    return Identity(agent, "" if parent == header(headers, "session-id") else parent, summary)


def _options(start: Start) -> tuple[str, ...]:
    spec = start.job.spec
    settings = {
        "model": f'"{MODEL}"',
        "model_provider": '"tidemill"',
        "model_providers.tidemill.name": '"tidemill"',
        "model_providers.tidemill.base_url": f'"{start.base_url}/v1"',
        "model_providers.tidemill.env_key": '"TIDEMILL_API_KEY"',
        "model_providers.tidemill.wire_api": '"responses"',
        "model_providers.tidemill.request_max_retries": "30",
        "model_providers.tidemill.stream_max_retries": "30",
        "model_providers.tidemill.stream_idle_timeout_ms": str(_HOUR),
        "model_context_window": str(spec.model.max_length),
        "model_auto_compact_token_limit": str(max(1, spec.model.max_length - spec.sampling.max_tokens)),
        "check_for_update_on_startup": "false",
        "analytics.enabled": "false",
    }
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    # Its own sandbox needs rights that ours has dropped; ours is the stronger one.
    return ("exec", *words, "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json", "-")


def _environment() -> dict[str, str]:
    # The key is in TIDEMILL_API_KEY. Below /tmp, where the sandbox's home is, it does not put its helpers on the PATH.
    return {"CODEX_HOME": _HOME}


PRESET = Preset("codex", "responses", launch, launch_in_image, identify)

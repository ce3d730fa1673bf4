"""What both wires of OpenAI share."""

from __future__ import annotations

import msgspec

from tidemill_rollout.gateway.conversation import Fault, Role, TooLong

ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
CALL_PREFIX = "call_"
UNREADABLE = "[{}: the model reads text only]"
"""Stands for an image or a file in a tool's result: a refusal there would end the run for what the policy tried once."""
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error(fault: Fault) -> bytes:
    code, message = error_code(fault), fault.message
    if isinstance(fault, TooLong):
        message = f"This model's maximum context length is {fault.maximum} tokens. However, your messages resulted in {fault.tokens} tokens."
    kind = _KINDS.get(fault.status, "invalid_request_error" if fault.status < 500 else "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def error_code(fault: Fault) -> str | None:
    return "context_length_exceeded" if isinstance(fault, TooLong) else None


def inner(call_id: str) -> str:
    return call_id.removeprefix(CALL_PREFIX)


def event(data: bytes, kind: str = "") -> bytes:
    return (b"event: " + kind.encode() + b"\n" if kind else b"") + b"data: " + data + b"\n\n"

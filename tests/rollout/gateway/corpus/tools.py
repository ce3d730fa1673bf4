"""The tools that the harnesses of the corpus offer, in the shapes of their wires and of the chat template."""

from __future__ import annotations

import json
from typing import Any

PARAMETERS: dict[str, dict[str, Any]] = {
    "bash": {"type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}}},
    "read": {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "number"}}},
    "agent": {"type": "object", "properties": {"prompt": {"type": "string"}}},
    "patch": {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]},
}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "x"}
"""Of patch, which is a custom tool on Responses: it takes text."""


def as_template(name: str) -> str:
    """As the chat template shows it."""
    described = f"The {name} tool." + ("\n\nThe input follows this lark grammar:\nx" if name == "patch" else "")
    return json.dumps({"type": "function", "function": {"name": name, "description": described, "parameters": PARAMETERS[name]}})


def as_messages(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"The {name} tool.", "input_schema": PARAMETERS[name]}


def as_chat(name: str) -> dict[str, Any]:
    return dict(json.loads(as_template(name)))


def as_responses(name: str) -> dict[str, Any]:
    if name == "patch":
        return {"type": "custom", "name": name, "description": f"The {name} tool.", "format": GRAMMAR}
    return {"type": "function", "name": name, "description": f"The {name} tool.", "strict": False, "parameters": PARAMETERS[name]}

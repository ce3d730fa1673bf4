"""What a harness asks of sampling."""

from __future__ import annotations

from typing import Any

import msgspec

LONGEST_TEXT = 64


class Asked(msgspec.Struct, kw_only=True):
    """Fields that the wires have in common. Any value is let in: it is only recorded."""

    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    seed: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    reasoning_effort: Any = None

    def asked(self) -> dict[str, Any]:
        """Those that were set to something plain."""
        return {name: value for name in Asked.__struct_fields__ if _plain(value := getattr(self, name))}


def _plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_TEXT
    if isinstance(value, int):
        return -(2**63) <= value < 2**63  # the journal's integers
    return isinstance(value, float)

"""What the policy says, in advance: each conversation by a mark in what it is asked, each answer by how many came before."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

OPENING = "<|im_start|>assistant\n"


Said = str | Callable[[str], str]
"""An answer, or how to make it of the prompt, where it must name what only the prompt knows."""


@dataclass
class Script:
    """A policy with no will of its own. What it is not told to say is noted, and said so."""

    conversations: Mapping[str, tuple[Said, ...]]
    given: dict[tuple[str, int], str] = field(default_factory=dict)
    unscripted: list[str] = field(default_factory=list)

    def __call__(self, prompt: str) -> str:
        places = {place: mark for mark in self.conversations if (place := prompt.find(mark)) >= 0}
        first = min(places, default=0)
        mark = places.get(first, "")
        said = self.conversations.get(mark, ())
        number = prompt.count(OPENING, first) - 1
        if number >= len(said):
            self.unscripted.append(prompt)
            return "There is nothing in the script for this."
        answer = said[number]
        self.given[mark, number] = answer if isinstance(answer, str) else answer(prompt)
        return self.given[mark, number]

    def conversation(self, mark: str) -> tuple[str, ...]:
        """What was said in it. Raises KeyError where something was not."""
        return tuple(self.given[mark, number] for number in range(len(self.conversations[mark])))

    @property
    def answers(self) -> tuple[str, ...]:
        return tuple(answer for mark in self.conversations for answer in self.conversation(mark))


def calls(text: str, *wanted: tuple[str, dict[str, Any]], thought: str = "") -> str:
    """An answer that calls tools, several at once if so wanted."""
    thinking = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    blocks = [f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in wanted]
    return thinking + "\n".join([text, *blocks])

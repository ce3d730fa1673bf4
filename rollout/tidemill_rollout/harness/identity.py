"""Who makes a model call: the main agent or a sub-agent, and whether it only asks for the summary of a compaction. Each preset has its own rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidemill_rollout.gateway.conversation import Ask, Message

LONGEST_ID = 128
"""Of an agent. A header is the harness's, and so the sandbox's: it may hold anything."""


@dataclass(frozen=True, slots=True)
class Identity:
    agent: str = ""  # "" is the main agent, else the harness's own id of a sub-agent
    parent_agent: str = ""  # who started it; "" is the main agent
    summary: bool = False  # the call asks for the summary of a compaction


Identify = Callable[[Mapping[str, str], Ask], Identity]
"""Given the headers of a request and what its wire made of it. Called once for each request; must be quick and never raise."""


def identify(headers: Mapping[str, str], ask: Ask) -> Identity:
    """What the wire found."""
    return Identity(ask.agent, ask.parent_agent, ask.summary)


def header(headers: Mapping[str, str], name: str) -> str:
    """A header's text, fit to be stored: it may hold any bytes, and any number of them."""
    return headers.get(name, "").encode(errors="replace").decode()[:LONGEST_ID]


def last_said(ask: Ask) -> str:
    """The text of the last message, if it is the user's: where harnesses put what they want of the model besides the task."""
    last: Message | None = ask.messages[-1] if ask.messages else None
    return last.text if last is not None and last.role == "user" else ""

"""What there is to know of one agent program: how it is started, how its calls are told apart, what it does when the model is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.api.rljob import RLJob
from tidemill_rollout.harness.identity import Identify, identify
from tidemill_rollout.sandbox.process import Launch
from tidemill_rollout.tasks.source import Task

MODEL = "policy"
"""Every harness asks for this model; the gateway serves the policy whatever is asked for."""


class HarnessError(Exception):
    """The manifest's harness cannot be started. The text says what to change."""


@dataclass(frozen=True, slots=True)
class Start:
    """One execution's wish for a harness."""

    job: RLJob
    task: Task
    base_url: str  # of the execution at the gateway, without /v1
    key: str


Launcher = Callable[[Start], Launch]
"""Raises `HarnessError`."""


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    wire: str  # chat, messages or responses; "any" where the program decides
    launch: Launcher  # on this machine
    launch_in_image: Launcher  # in a pod, whose image has the programs; `Launch.files` are this machine's, to be brought there
    identify: Identify = identify
    hold_seconds: float = 240.0  # that it waits for an answer of which it hears nothing; the shortest watchdog that we know counts 300 s

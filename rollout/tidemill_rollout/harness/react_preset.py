"""Preset react: the small agent of `react.py`, which is brought along and needs nothing but a Python."""

from __future__ import annotations

from pathlib import Path

from tidemill_rollout.harness import react
from tidemill_rollout.harness.preset import Preset, Start
from tidemill_rollout.sandbox.process import Launch, interpreter

PROGRAM = "/run/harness/react.py"


def launch(start: Start) -> Launch:
    return _with(interpreter())


def launch_in_image(start: Start) -> Launch:
    return _with("python3")


def _with(python: str) -> Launch:
    return Launch((python, "-I", "-S", PROGRAM), {}, files={PROGRAM: Path(react.__file__).resolve()})


PRESET = Preset("react", "chat", launch, launch_in_image)

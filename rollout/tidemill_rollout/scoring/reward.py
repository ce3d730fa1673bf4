"""The reward files that a task's tests write (Harbor's: reward.json, else reward.txt), read without trusting them."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path

MAX_BYTES = 64 * 1024


class RewardError(Exception):
    """There is no reward, or it is none. Not a zero."""


def read_reward(verifier_logs: Path) -> float:
    """The reward in `verifier_logs`: of reward.json, if there is one, its "reward" or its only number; else the number in reward.txt.

    Raises:
        RewardError: neither file, an unreadable one, no finite number in it, or several and none is called "reward".
    """
    for name, parse in (("reward.json", _of_json), ("reward.txt", _of_text)):
        text = _read(verifier_logs / name)
        if text is not None:
            value = parse(text, name)
            if not math.isfinite(value):
                raise RewardError(f"{name}: the reward is {value}, it must be finite")
            return value
    raise RewardError("the tests wrote neither /logs/verifier/reward.json nor reward.txt")


def _read(path: Path) -> str | None:
    """None when there is no such file. What tests ran may have put a link or a pipe there: neither is followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise RewardError(f"{path.name}: {problem.strerror}") from problem
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RewardError(f"{path.name} is not a file")
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise RewardError(f"{path.name} is longer than {MAX_BYTES} bytes")
    try:
        return text.decode()
    except UnicodeDecodeError as problem:
        raise RewardError(f"{path.name} is not UTF-8") from problem


def _of_text(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RewardError(f"{name}: {text.strip()[:100]!r} is not a number") from None


def _of_json(text: str, name: str) -> float:
    try:
        rewards = json.loads(text)
    except ValueError as problem:
        raise RewardError(f"{name} is not JSON: {problem}") from problem
    if not isinstance(rewards, dict) or not all(isinstance(value, int | float) for value in rewards.values()):
        raise RewardError(f'{name}: {text.strip()[:100]!r} is not an object of numbers such as {{"reward": 0.5}}')
    if "reward" not in rewards and len(rewards) != 1:
        raise RewardError(f'{name}: of the rewards {", ".join(rewards) or "(none)"} none is called "reward"')
    value = rewards["reward"] if "reward" in rewards else next(iter(rewards.values()))
    try:
        return float(value)
    except OverflowError:
        raise RewardError(f"{name}: the reward is too large") from None

"""The reward files that a task's tests write (Harbor's: reward.json, else reward.txt), read without trusting them."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path

MAX_BYTES = 64 * 1024

LARGEST = 1e6
"""Of a reward, up or down. What is further out is a mistake of the tests: it would leave all others of its group the same."""

_NUMBER = re.compile(r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE)
"""As JSON and C write them; Python's `float` would also take 1_000 and the digits of every script."""


class RewardError(Exception):
    """There is no reward, or it is none. Not a zero."""


def read_reward(verifier_logs: Path) -> float:
    """The reward in `verifier_logs`: of reward.json, if there is one, its "reward" or its only number; else the number in reward.txt.

    Raises:
        RewardError: neither file, an unreadable one, no number within `LARGEST` in it, or several and none is called "reward".
    """
    for name, parse in (("reward.json", _of_json), ("reward.txt", _of_text)):
        text = _read(verifier_logs, name)
        if text is not None:
            value = parse(text, name)
            if not math.isfinite(value):
                raise RewardError(f"{name}: the reward is {value}, it must be finite")
            if abs(value) > LARGEST:
                raise RewardError(f"{name}: the reward is {value:g}, it must lie between {-LARGEST:g} and {LARGEST:g}")
            return value
    raise RewardError("the tests wrote neither /logs/verifier/reward.json nor reward.txt")


def _read(folder: Path, name: str) -> str | None:
    """None when there is no such file. What the tests ran may have put a link or a pipe there, also for the folder: none is followed."""
    try:
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise RewardError(f"/logs/verifier is not a folder: {problem.strerror}") from problem
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise RewardError(f"{name}: {problem.strerror}") from problem
    finally:
        os.close(inside)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # before `fdopen`, which takes no folder
        os.close(descriptor)
        raise RewardError(f"{name} is not a file")
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise RewardError(f"{name} is longer than {MAX_BYTES} bytes")
    try:
        return text.decode()
    except UnicodeDecodeError as problem:
        raise RewardError(f"{name} is not UTF-8") from problem


def _of_text(text: str, name: str) -> float:
    word = text.strip()
    if not _NUMBER.fullmatch(word):
        raise RewardError(f"{name}: {word[:100]!r} is not a number")
    return float(word)


def _of_json(text: str, name: str) -> float:
    try:
        rewards = json.loads(text)
    except (ValueError, RecursionError) as problem:  # nested deeper than any reward is
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

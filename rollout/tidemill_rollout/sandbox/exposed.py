"""Ends what a program without a jail has left behind, also where it killed whoever was to end it: found by a mark in its variables, or its session.

A program that gets rid of both, and of its parents, gets away. Without a jail nothing holds it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

MARK = "TIDEMILL_SANDBOX_MARK"
SWEEP_SECONDS = 5.0


def sweep(mark: str, session: int) -> None:
    """Kill until nothing is left. `session` is the process id of its first process, whether that lives or not."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while (found := _marked(f"{MARK}={mark}".encode(), session)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def _marked(variable: bytes, session: int) -> list[int]:
    """The dead that nobody has buried yet are none of them."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, _, own_session = file.read().rsplit(b")", 1)[1].split()[:4]
            if state in (b"Z", b"X"):
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = variable in file.read().split(b"\0")
        except OSError:  # it has just ended, or is another user's
            continue
        if marked or int(own_session) == session:
            found.append(int(name))
    return found

"""Looks at each GPU of the cell from a thread of its own: a call to a GPU that is lost may never return, and nothing else may wait for it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from tidemill.telemetry.logs import Log
from tidemill_cell.gpu import nvml
from tidemill_cell.gpu.reading import GpuGone, Reading

PERIOD_SECONDS = 5.0
DEADLINE_SECONDS = 15.0
"""A look takes milliseconds. What is older than this is told no more: the GPU does not answer."""

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one GPU now."""

    gpu: str  # as the cell was given it
    reading: Reading | None  # None: it does not answer
    reason: str  # why not
    errors: tuple[tuple[int, int], ...] | None  # XID and how often, since the agent began; None: this GPU or slice reports none


@dataclass(slots=True)
class Gpu:
    """One GPU and the thread that looks at it. `seen` never waits for that thread."""

    name: str
    clock: Callable[[], float] = time.monotonic
    period_seconds: float = PERIOD_SECONDS
    deadline_seconds: float = DEADLINE_SECONDS
    _reading: Reading | None = None
    _reason: str = "was not looked at yet"
    _looked: float | None = None  # when `_reading` or `_reason` became known
    _errors: Counter[int] = field(default_factory=Counter)
    _listens: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self._looked = self.clock()
        threading.Thread(target=self._live, name=f"gpu-{self.name}", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def seen(self) -> Seen:
        with self._lock:
            silent = self._looked is not None and self.clock() - self._looked > self.deadline_seconds
            reading, reason = (None, f"no answer for {self.deadline_seconds:g} s") if silent else (self._reading, self._reason)
            errors = tuple(sorted(self._errors.items())) if self._listens else None
        return Seen(self.name, reading, reason, errors)

    def _live(self) -> None:
        while not self._stop.is_set():
            try:
                self._look_until_it_is_gone()
            except GpuGone as gone:
                if str(gone) != self._reason:
                    _log.error("gpu does not answer", gpu=self.name, reason=str(gone))
                self._note(None, str(gone))
            self._stop.wait(self.period_seconds)

    def _look_until_it_is_gone(self) -> None:
        nvml.begin()
        handle = nvml.find(self.name)
        with closing(nvml.Activity(handle)) as activity, closing(nvml.Errors(handle)) as errors:
            self._listens = self._listens or errors.supported
            while not self._stop.is_set():
                self._count(errors.new())  # before the look: a lost GPU has an error to tell
                self._note(nvml.look(handle, activity), "")
                self._stop.wait(self.period_seconds)

    def _count(self, new: list[int]) -> None:
        for xid in new:
            _log.error("gpu reports an error", gpu=self.name, xid=xid)
        with self._lock:
            self._errors.update(new)

    def _note(self, reading: Reading | None, reason: str) -> None:
        with self._lock:
            self._reading, self._reason, self._looked = reading, reason, self.clock()


class Watch:
    """All GPUs of this cell on this node; none of others."""

    def __init__(self, names: tuple[str, ...], period_seconds: float = PERIOD_SECONDS, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._gpus = tuple(Gpu(name, period_seconds=period_seconds, deadline_seconds=deadline_seconds) for name in names)

    def start(self) -> None:
        for gpu in self._gpus:
            gpu.start()

    def stop(self) -> None:
        for gpu in self._gpus:
            gpu.stop()

    def seen(self) -> tuple[Seen, ...]:
        return tuple(gpu.seen() for gpu in self._gpus)

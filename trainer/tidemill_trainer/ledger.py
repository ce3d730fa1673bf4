"""What a trainer's time went to, and what it moved: kept where it happens, read by metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tidemill.telemetry.stopwatch import Stopwatch

COMPUTE = "Compute"
HAND_OVER = "HandOver"
UPDATE = "Update"
PUBLISH = "Publish"
NO_WORK = "NoWork"
WAITING_FOR_WEIGHTS = "WaitingForWeights"
JOINING_CLOSED = "JoiningClosed"

BUSY = (COMPUTE, HAND_OVER, UPDATE, PUBLISH)
IDLE = (NO_WORK, WAITING_FOR_WEIGHTS, JOINING_CLOSED)


class Ledger:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.time = Stopwatch("", clock)  # of what is done while joined
        self.microsteps = 0
        self.computed_tokens = 0.0
        self.weight_bytes = 0
        self.gradient_bytes = 0
        self.checksum_failures: Counter[str] = Counter()  # by what arrived damaged
        self.publications = 0
        self.publication_seconds = 0.0
        self.publication_bytes = 0
        self.checkpoints = 0
        self.checkpoint_seconds = 0.0
        self.checkpoint_bytes = 0

    def now(self) -> float:
        return self._clock()

    def waited(self, since: float, closed_seconds: float) -> None:
        """For work, until now. Only the answer says why: for `closed_seconds` of it the step took no more groups."""
        now = self._clock()
        self.time.turn_to(NO_WORK, since)
        if closed_seconds > 0:
            self.time.turn_to(JOINING_CLOSED, max(since, now - closed_seconds))

    def computed(self, sums: dict[str, float]) -> None:
        self.microsteps += 1
        self.computed_tokens += sums.get("computed_tokens", 0.0)

    def seconds(self, of: tuple[str, ...]) -> dict[str, float]:
        return {what: seconds for what, seconds in self.time.seconds().items() if what in of}

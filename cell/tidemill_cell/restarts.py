"""When a child that ended is started again, and when that is given up. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a child may take for what, and how often it may fail."""

    start_seconds: float = 600.0  # until its first healthy answer: a large model is read from disk
    poll_seconds: float = 1.0
    answer_seconds: float = 10.0  # one health check
    silent_seconds: float = 60.0  # without a healthy answer for so long it hangs, and is killed
    steady_seconds: float = 60.0  # healthy for so long, earlier failures are forgotten
    restarts: int = 5  # in a row
    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 30.0
    term_seconds: float = 3.5  # from TERM to KILL; the agent itself has five to end


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures in a row so far."""

    count: int = 0

    def after(self, healthy_seconds: float, patience: Patience) -> Failures:
        """One more, after a life that was healthy for so long."""
        return Failures(1 if healthy_seconds >= patience.steady_seconds else self.count + 1)

    def pause(self, patience: Patience) -> float | None:
        """Seconds to wait before the next start; None when there is none."""
        if self.count > patience.restarts:
            return None
        return min(patience.longest_pause_seconds, patience.first_pause_seconds * 2.0 ** (self.count - 1))

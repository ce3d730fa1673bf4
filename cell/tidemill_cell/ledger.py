"""What a cell's time went to, and what it did: kept where it happens, read by metrics."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable

from tidemill.telemetry.stopwatch import Stopwatch
from tidemill.wire.cell import Flip, Role, RoleOrder
from tidemill_cell.roles import Acknowledged, Engine, Phase, Standing

STARTING = "Starting"
FLIPPING = "Flipping"
FAILED = "Failed"


class Ledger:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.roles = Stopwatch(STARTING, clock)
        self.idle = Stopwatch(STARTING, clock)
        self.flips: Counter[str] = Counter()  # by the role they lead to, as the next two
        self.flip_seconds: defaultdict[str, float] = defaultdict(float)
        self.last_flip_seconds: dict[str, float] = {}
        self.phase_seconds: defaultdict[tuple[str, str], float] = defaultdict(float)  # by that role and phase
        self.phase_failures = 0
        self.moved_calls = 0
        self.loads = 0
        self.load_seconds = 0.0
        self.load_bytes = 0
        self.load_failures: Counter[str] = Counter()  # by reason

    def stands(self, role: str, idle: str) -> None:
        """From now on."""
        self.roles.turn_to(role)
        self.idle.turn_to(idle)

    def flipped(self, flip: Flip) -> None:
        self.flips[flip.to] += 1
        self.flip_seconds[flip.to] += flip.seconds
        self.last_flip_seconds[flip.to] = flip.seconds
        self.moved_calls += flip.calls_in_flight
        for phase, seconds in flip.phases.items():
            self.phase_seconds[flip.to, phase] += seconds

    def loaded(self, seconds: float, nbytes: int) -> None:
        """A publication was loaded and verified."""
        self.loads += 1
        self.load_seconds += seconds
        self.load_bytes += nbytes


def role_now(order: RoleOrder | None, acknowledged: Acknowledged | None, failed: bool) -> str:
    """What a cell does, as metrics name it: as long as its acknowledged role is ordered too, that, whatever is loaded or restarted meanwhile."""
    if failed:
        return FAILED
    if order is None or acknowledged is None:
        return STARTING
    return acknowledged.role.value if acknowledged.role is order.role else FLIPPING


def idle_cause(role: str, to: Role | None, doing: Phase | None, stands: Standing, serves: bool) -> str:
    """Why the cell's devices have nothing to compute; "" when they have, or when the trainer knows. `to` is the role that was ordered."""
    if role in (STARTING, FAILED):
        return role
    if role == Role.TRAINING:
        return ""
    if doing is Phase.WEIGHTS or (to is Role.ROLLOUT and doing is None and stands.engine is Engine.AWAKE and stands.weights is None):
        return "WaitingForWeights"
    if doing is Phase.DRAIN:
        return "Draining"
    if role == FLIPPING or doing not in (None, Phase.ROUTE):
        return FLIPPING
    if stands.engine is Engine.DOWN:
        return STARTING
    return "" if serves else "NoWork"

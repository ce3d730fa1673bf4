"""Which cell a call goes to. Routes come and go with the cells' roles; what is decided is a pure function of the loads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidemill.telemetry.logs import Log
from tidemill.wire.gateway import Drain, Drained, Route
from tidemill.wire.http import Refused, Unreachable

FIRST_REST_SECONDS = 0.25
LONGEST_REST_SECONDS = 8.0
"""After a failed call a cell gets no new ones for this long, doubled with every failure in a row."""

DRAIN_SECONDS = 30.0

log = Log(__name__)


@dataclass(frozen=True, slots=True)
class Load:
    cell: str
    ordinal: int
    capacity: int
    live: int

    @property
    def relative(self) -> float:
        return self.live / max(self.capacity, 1)


def choose(loads: Iterable[Load], preferred: Sequence[str] = ()) -> str | None:
    """The cell for a call, or None when there is none.

    The first preferred cell that is not full (it holds the execution's KV, or a drain reserved it), else the least loaded one. Of
    equals the highest ordinal: cells leave rollout in order of ordinals, so it stays longest.
    """
    by_name = {load.cell: load for load in loads}
    for cell in preferred:
        if cell in by_name and by_name[cell].relative < 1:
            return cell
    return min(by_name.values(), key=lambda load: (load.relative, -load.ordinal)).cell if by_name else None


@dataclass(slots=True, eq=False)
class Lease:
    """One call's stay at one cell."""

    route: Route
    reader: asyncio.Task[str] | None = None
    sampled: int = 0  # tokens of this stay
    moved: bool = False
    destinations: tuple[str, ...] = ()
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def move(self, destinations: tuple[str, ...]) -> None:
        self.moved, self.destinations = True, destinations
        if self.reader is not None:
            self.reader.cancel()


class Routes:
    """Routes, the calls on them, and the newest epoch heard of each cell."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._routes: dict[str, Route] = {}
        self._epochs: dict[str, int] = {}
        self._leases: set[Lease] = set()
        self._rests: dict[str, tuple[float, float]] = {}  # cell -> (until, seconds)
        self._changed = asyncio.Event()

    @property
    def epochs(self) -> dict[str, int]:
        return {cell: route.epoch for cell, route in self._routes.items()}

    @property
    def live(self) -> int:
        return len(self._leases)

    def restore(self, cell: str, epoch: int, route: Route | None) -> None:
        self._epochs[cell] = epoch
        if route is not None:
            self._routes[cell] = route

    def put(self, route: Route) -> bool:
        """Whether it is news: agents put their route again every few seconds. Raises `Refused` when a newer epoch of the cell is known."""
        self._admit(route.cell, route.epoch)
        if self._routes.get(route.cell) == route:
            return False
        self._routes[route.cell] = route
        self._rests.pop(route.cell, None)
        self._wake()
        return True

    async def drain(self, cell: str, order: Drain) -> Drained:
        """Take the cell out and stop the calls there; return when all have left. Raises `Refused` when a newer epoch of the cell is known."""
        self._admit(cell, order.epoch)
        self._routes.pop(cell, None)
        leases = [lease for lease in self._leases if lease.route.cell == cell]
        for lease in leases:
            lease.move(order.destinations)
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                for lease in leases:
                    await lease.gone.wait()
        except TimeoutError as cause:
            raise Unreachable(f"cell {cell}: calls have not left within {DRAIN_SECONDS:g} s; drain again") from cause
        moved = [lease for lease in leases if lease.moved]
        return Drained(len(moved), sum(lease.sampled > 0 for lease in moved))

    async def take(self, preferred: Sequence[str] = ()) -> Lease:
        """Wait until there is a cell to go to. The caller sets the deadline, and gives the lease back with `leave`."""
        while True:
            now = self._clock()
            awake = [route for cell, route in self._routes.items() if self._rests.get(cell, (0.0, 0.0))[0] <= now]
            cell = choose([self._load(route) for route in awake], preferred)
            if cell is not None:
                lease = Lease(self._routes[cell])
                self._leases.add(lease)
                return lease
            ends = [until for name, (until, _) in self._rests.items() if name in self._routes]
            changed = self._changed
            try:
                async with asyncio.timeout(max(min(ends) - now, 0.001) if ends else None):
                    await changed.wait()
            except TimeoutError:
                continue

    def leave(self, lease: Lease) -> None:
        self._leases.discard(lease)
        lease.gone.set()

    def failed(self, cell: str) -> None:
        """Let the cell rest."""
        seconds = min(2 * self._rests.get(cell, (0.0, FIRST_REST_SECONDS / 2))[1], LONGEST_REST_SECONDS)
        self._rests[cell] = (self._clock() + seconds, seconds)

    def works(self, cell: str) -> None:
        self._rests.pop(cell, None)

    def _admit(self, cell: str, epoch: int) -> None:
        newest = self._epochs.get(cell, 0)
        if epoch < newest:
            raise Refused(f"cell {cell}: epoch {epoch} is older than {newest}")
        self._epochs[cell] = epoch

    def _load(self, route: Route) -> Load:
        live = sum(lease.route.cell == route.cell for lease in self._leases)
        return Load(route.cell, route.ordinal, route.capacity, live)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

"""Which cell a call goes to, and when. Routes come and go with the cells' roles; what is decided is a pure function of the loads."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tidemill.telemetry.logs import Log
from tidemill.wire.gateway import Drain, Drained, Route
from tidemill.wire.http import Refused, Unreachable
from tidemill_rollout.gateway.admission import Line

CALLS_PER_PLACE = 2
"""Calls that a cell takes at once for each execution of its capacity. Sub-agents call beside each other; what exceeds this waits in line."""

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


@dataclass(slots=True, eq=False)
class _Waiting:
    preferred: Sequence[str]
    moved: bool
    lease: asyncio.Future[Lease]


class Routes:
    """Routes, the calls on them, those who wait, and the newest epoch heard of each cell. `gateways` share the cells evenly."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, gateways: int = 1) -> None:
        self._clock = clock
        self._gateways = gateways
        self._routes: dict[str, Route] = {}
        self._epochs: dict[str, int] = {}
        self._leases: set[Lease] = set()
        self._live: Counter[str] = Counter()  # leases by cell
        self._rests: dict[str, tuple[float, float]] = {}  # cell -> (until, seconds)
        self._line: Line[_Waiting] = Line()
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def epochs(self) -> dict[str, int]:
        return {cell: route.epoch for cell, route in self._routes.items()}

    @property
    def live(self) -> int:
        return len(self._leases)

    @property
    def waiting(self) -> int:
        return len(self._line)

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
        self._serve()
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

    async def take(self, preferred: Sequence[str] = (), execution: str = "", *, moved: bool = False) -> Lease:
        """Wait in line for a cell. The caller sets the deadline, and gives the lease back with `leave`.

        A call that was moved had its place elsewhere: it waits only where there is no cell at all, since nobody waits because a cell has left.
        """
        waiting = _Waiting(preferred, moved, asyncio.get_running_loop().create_future())
        self._line.join(execution, waiting, moved=moved)
        self._serve()
        try:
            return await waiting.lease
        except asyncio.CancelledError:
            self._line.leave(execution, waiting)
            if waiting.lease.done() and not waiting.lease.cancelled():
                self.leave(waiting.lease.result())
            raise

    def leave(self, lease: Lease) -> None:
        if lease in self._leases:
            self._leases.discard(lease)
            self._live[lease.route.cell] -= 1
        lease.gone.set()
        self._serve()

    def failed(self, cell: str) -> None:
        """Let the cell rest."""
        seconds = min(2 * self._rests.get(cell, (0.0, FIRST_REST_SECONDS / 2))[1], LONGEST_REST_SECONDS)
        self._rests[cell] = (self._clock() + seconds, seconds)

    def works(self, cell: str) -> None:
        self._rests.pop(cell, None)

    def _serve(self) -> None:
        """Give leases to those in line, as far as there is room."""
        while (first := self._line.first()) is not None:
            cell = choose(self._free(first.moved), first.preferred)
            if cell is None:
                break
            waiting = self._line.next()
            if not waiting.lease.done():  # else it has just been cancelled
                lease = Lease(self._routes[cell])
                self._leases.add(lease)
                self._live[cell] += 1
                waiting.lease.set_result(lease)
        if self._line:
            self._serve_after_rests()

    def _serve_after_rests(self) -> None:
        now = self._clock()
        ends = [until for cell, (until, _) in self._rests.items() if cell in self._routes and until > now]
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(max(min(ends) - now, 0.001), self._serve) if ends else None

    def _free(self, moved: bool) -> list[Load]:
        """Cells that take another call."""
        now = self._clock()
        awake = (route for cell, route in self._routes.items() if self._rests.get(cell, (0.0, 0.0))[0] <= now)
        return [self._load(route) for route in awake if moved or self._live[route.cell] < self._room(route)]

    def _room(self, route: Route) -> int:
        return max(1, math.ceil(CALLS_PER_PLACE * route.capacity / self._gateways))

    def _admit(self, cell: str, epoch: int) -> None:
        newest = self._epochs.get(cell, 0)
        if epoch < newest:
            raise Refused(f"cell {cell}: epoch {epoch} is older than {newest}")
        self._epochs[cell] = epoch

    def _load(self, route: Route) -> Load:
        return Load(route.cell, route.ordinal, route.capacity, self._live[route.cell])

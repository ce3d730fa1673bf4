"""What holds the job back now, and for whom it has not yet been written down."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.telemetry.events import ConditionChanged
from tidemill.telemetry.logs import Log
from tidemill.wire.cell import Role
from tidemill_rollout.conductor import events
from tidemill_rollout.conductor.cells import SILENT_SECONDS, Cell
from tidemill_rollout.conductor.store import Database

STORE = "StoreWritable"
DISK = "DiskSpace"
GATEWAY = "GatewayReady"
SANDBOXES = "SandboxesStart"
CORE = "CoreReady"
CORE_TRAINS = "CoreMayTrain"
PAUSING = (STORE, DISK, GATEWAY, SANDBOXES, CORE)
"""Under these no execution is started and the job says Paused; the others only tell that something is amiss."""

CRIPPLING = (STORE, DISK, GATEWAY, CORE)
"""Under these also what runs cannot do its work."""

FULL_DISK = (STORE, DISK)
PROBE_SECONDS = 60.0
"""Whether sandboxes start again shows only when one is started: while nothing else holds the job back, one execution is, this often."""

_log = Log(__name__)


def tell(db: Database, changed: ConditionChanged) -> None:
    """Write it down, and that it holds: a process that is killed cannot say that it is over."""
    events.say(db, changed)
    db.execute("INSERT OR IGNORE INTO conditions (kind) VALUES (?)" if changed.text else "DELETE FROM conditions WHERE kind = ?", (changed.kind,))


def begin_anew(db: Database, now: float) -> None:
    """What held in the life before is over; what still holds will be told again."""
    for (kind,) in db.execute("DELETE FROM conditions RETURNING kind").fetchall():
        events.say(db, ConditionChanged(time=now, kind=kind, text=""))


class Conditions:
    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._cleared: dict[str, float] = {}
        self._probed = 0.0
        self.untold: list[ConditionChanged] = []

    def state(self, kind: str, text: str, now: float) -> None:
        """Set what `kind` says; an empty text clears it."""
        if self._held.get(kind, "") == text:
            return
        self.untold.append(ConditionChanged(time=now, kind=kind, text=text))
        if text:
            self._held[kind] = text
            self._probed = now if kind == SANDBOXES else self._probed
            _log.warning("condition", kind=kind, text=text)
        else:
            del self._held[kind]
            self._cleared[kind] = now
            _log.info("condition cleared", kind=kind)

    def note_cells(self, cells: Iterable[Cell], now: float) -> None:
        for cell in cells:
            silent = f"cell {cell.name}: its agent has not reported for over {SILENT_SECONDS:g} s" if cell.silent else ""
            failed = f"cell {cell.name} failed: {cell.state.reason}" if cell.failed and cell.state else ""
            wrong = f"cell {cell.name}: has loaded other weights than were published; it gets no executions" if cell.serves_wrong_weights else ""
            self.state(CORE if cell.is_core else f"CellReady/{cell.name}", failed or silent or wrong, now)
            if cell.is_core:
                held = "cordoned" if cell.cordoned else "pinned to Rollout" if cell.pinned is Role.ROLLOUT else ""
                self.state(CORE_TRAINS, f"the core is {held}, so nothing is trained until that is taken back" if held else "", now)

    def holds(self, kind: str) -> bool:
        return kind in self._held

    def held(self, kinds: Iterable[str], since: float) -> bool:
        """Whether one of them held the job back, now or at some time after `since`."""
        return any(kind in self._held or self._cleared.get(kind, since) > since for kind in kinds)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those that hold."""
        return tuple(self._held)

    @property
    def pausing(self) -> bool:
        return any(kind in self._held for kind in PAUSING)

    def probe(self, now: float) -> bool:
        """Whether one execution is to be started in spite of all, to see whether sandboxes start again."""
        due = [kind for kind in PAUSING if kind in self._held] == [SANDBOXES] and now - self._probed >= PROBE_SECONDS
        if due:
            self._probed = now
        return due

    @property
    def text(self) -> str:
        return "; ".join(f"{kind}: {text}" for kind, text in self._held.items())

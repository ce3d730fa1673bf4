"""Cells: the role that each is granted (stored), and what its agent last reported (not stored: it reports again within seconds)."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tidemill.policy.tide import CellView, Pin
from tidemill.telemetry.events import FlipEnded, RoleAcknowledged, WeightsLoaded
from tidemill.wire.cell import CellPhase, CellState, Role
from tidemill.wire.conductor import CellTide, Grant
from tidemill.wire.http import Rejected
from tidemill_rollout.conductor import events
from tidemill_rollout.conductor.store import Database

SILENT_SECONDS = 60.0
"""An agent reports every 2 s. One that has not for this long is taken for dead until it reports again; a busy machine needs a generous limit."""

LATE_SECONDS = 15.0
"""A cell that has not taken up its role for this long, or an agent that has said nothing for so long, is waited for no longer."""


@dataclass(slots=True)
class Reports:
    """What the agents last said, and when they were last heard; a cell is given `SILENT_SECONDS` from `since` to say anything."""

    since: float
    last: dict[str, tuple[CellState, float]] = field(default_factory=dict)
    ready: dict[str, tuple[int, float]] = field(default_factory=dict)  # the epoch, and when it was last told to be in effect

    def note(self, state: CellState, now: float) -> None:
        self.last[state.cell] = (state, now)
        if state.phase is CellPhase.READY:
            self.ready[state.cell] = (state.epoch, now)

    def state(self, cell: str) -> CellState | None:
        return self.last[cell][0] if cell in self.last else None

    def silent_seconds(self, cell: str, now: float) -> float:
        return now - (self.last[cell][1] if cell in self.last else self.since)

    def waited_seconds(self, cell: str, epoch: int, granted: float, now: float) -> float:
        """Since it was in effect, or since it was granted."""
        ready_epoch, at = self.ready.get(cell, (epoch, self.since))
        return now - max(granted, self.since, at if ready_epoch == epoch else self.since)


@dataclass(frozen=True, slots=True)
class Cell:
    name: str
    ordinal: int
    standalone: bool
    capacity: int
    role: Role  # granted
    epoch: int
    destinations: tuple[str, ...]
    granted: float  # unix seconds
    acknowledged_epoch: int  # the last that was ever acknowledged
    state: CellState | None
    silent_seconds: float
    serves_wrong_weights: bool  # what its engine has loaded is not what was published under that version
    pinned: Role | None = None
    cordoned: bool = False
    waited_seconds: float = 0.0  # for its granted role to be in effect

    @property
    def is_core(self) -> bool:
        return self.ordinal == 0 and not self.standalone

    @property
    def failed(self) -> bool:
        return self.state is not None and self.state.phase is CellPhase.FAILED

    @property
    def silent(self) -> bool:
        return self.silent_seconds > SILENT_SECONDS

    @property
    def lost(self) -> bool:
        """Nothing comes back from it. The core never is: the job waits for it, nobody takes its place."""
        return not self.is_core and (self.failed or self.silent)

    @property
    def leaving(self) -> bool:
        return self.state is not None and self.state.phase is CellPhase.LEAVING

    @property
    def usable(self) -> bool:
        """The core always is, unless a person says otherwise."""
        return not self.cordoned and (self.is_core or not (self.lost or self.leaving))

    @property
    def settled(self) -> bool:
        state = self.state
        return state is not None and not self.silent and state.phase is CellPhase.READY and (state.role, state.epoch) == (self.role, self.epoch)

    @property
    def late(self) -> bool:
        """A slow flip into training is not, as long as its agent speaks: cells leave one at a time, and `roll_back` ends what takes too long."""
        mute = self.silent_seconds > LATE_SECONDS
        under_way = self.role is Role.TRAINING and self.acknowledged_epoch < self.epoch
        return mute or (not self.settled and not under_way and self.waited_seconds > LATE_SECONDS)

    @property
    def loaded_version(self) -> int:
        return -1 if self.state is None or self.serves_wrong_weights else self.state.policy_version

    @property
    def serving(self) -> bool:
        """Takes calls now: in rollout, acknowledged, with verified weights."""
        return self.role is Role.ROLLOUT and self.settled and self.loaded_version >= 0

    def grant(self) -> Grant:
        return Grant(self.name, self.role, self.epoch, self.destinations)

    def view(self) -> CellView:
        pinned = None if self.pinned is None else Pin(self.pinned)
        return CellView(self.name, self.capacity, self.role is Role.ROLLOUT, self.settled, self.usable, pinned, self.late)

    def tide(self) -> CellTide:
        return CellTide(
            cell=self.name,
            ordinal=self.ordinal,
            capacity=self.capacity,
            granted_role=self.role,
            granted_epoch=self.epoch,
            state=self.state,
            standalone=self.standalone,
            usable=self.usable,
            settled=self.settled,
            pinned=self.pinned,
            cordoned=self.cordoned,
            late=self.late,
        )


_CREATE = "INSERT OR IGNORE INTO roles (cell, ordinal, standalone, capacity, role, epoch, granted) VALUES (?, ?, ?, ?, 'Rollout', 1, ?)"


def create(db: Database, cells: int, capacity: int, now: float) -> None:
    """Every cell begins in rollout, epoch 1. Cells that are already known keep their grants."""
    db.executemany(_CREATE, [(f"cell-{n}", n, 0, capacity, now) for n in range(cells)])


def resize_pool(db: Database, standalone: int, capacity: int, now: float) -> None:
    """So many standalone cells from now on. One that comes back begins under a new epoch: a gateway may remember its old ones."""
    db.executemany(_CREATE, [(f"standalone-{n}", n, 1, capacity, now) for n in range(standalone)])
    back = "SELECT cell FROM retired JOIN roles USING (cell) WHERE ordinal < ?"
    db.execute(f"UPDATE roles SET epoch = epoch + 1, granted = ? WHERE cell IN ({back})", (now, standalone))
    db.execute(f"DELETE FROM retired WHERE cell IN ({back})", (standalone,))
    db.execute("INSERT OR IGNORE INTO retired (cell) SELECT cell FROM roles WHERE standalone AND ordinal >= ?", (standalone,))


def forget_what_was_told(db: Database) -> None:
    """After a restart every acknowledged role is told again: while the job was stopped no cell had one, so its readers begin anew."""
    db.execute("UPDATE roles SET told_epoch = 0")


_PRESENT = "SELECT * FROM roles LEFT JOIN constraints USING (cell) WHERE cell NOT IN (SELECT cell FROM retired) ORDER BY standalone, ordinal"


def read(db: Database, reports: Reports, now: float) -> tuple[Cell, ...]:
    """All cells: those that change role in flip order, then the standalone ones."""
    digests = dict(db.execute("SELECT version, digest FROM versions").fetchall())
    cells = []
    for row in db.execute(_PRESENT):
        state = reports.state(row["cell"])
        cells.append(
            Cell(
                name=row["cell"],
                ordinal=row["ordinal"],
                standalone=bool(row["standalone"]),
                capacity=row["capacity"],
                role=Role(row["role"]),
                epoch=row["epoch"],
                destinations=msgspec.json.decode(row["destinations"], type=tuple[str, ...]),
                granted=row["granted"],
                acknowledged_epoch=row["acknowledged_epoch"],
                state=state,
                silent_seconds=reports.silent_seconds(row["cell"], now),
                serves_wrong_weights=state is not None
                and state.policy_version in digests
                and bool(state.weights_digest)
                and state.weights_digest != digests[state.policy_version],
                pinned=Role(row["pinned"]) if row["pinned"] else None,
                cordoned=bool(row["cordoned"]),
                waited_seconds=reports.waited_seconds(row["cell"], row["epoch"], row["granted"], now),
            )
        )
    return tuple(cells)


def grant(db: Database, cell: str, role: Role, destinations: tuple[str, ...], now: float) -> None:
    """The next epoch of `cell`."""
    db.execute(
        "UPDATE roles SET role = ?, epoch = epoch + 1, destinations = ?, granted = ? WHERE cell = ?",
        (role, msgspec.json.encode(destinations).decode(), now, cell),
    )


def constrain(db: Database, cell: str, pinned: Role | None, cordoned: bool) -> None:
    """What a person wants of `cell`, in place of what was wanted before."""
    sql = "INSERT INTO constraints (cell, pinned, cordoned) VALUES (?, ?, ?) ON CONFLICT (cell) DO UPDATE SET pinned = excluded.pinned, "
    db.execute(sql + "cordoned = excluded.cordoned", (cell, pinned or "", int(cordoned)))


def current_grant(db: Database, cell: str) -> Grant:
    row = db.execute("SELECT * FROM roles WHERE cell = ? AND cell NOT IN (SELECT cell FROM retired)", (cell,)).fetchone()
    if row is None:
        raise Rejected(404, f"cell {cell}: this job has no such cell; start the agent with one of the names in GET /v1/grants")
    return Grant(cell, Role(row["role"]), row["epoch"], msgspec.json.decode(row["destinations"], type=tuple[str, ...]))


def note_report(db: Database, state: CellState, now: float) -> None:
    """Keep what has not been reported before: an acknowledged role, a finished flip, loaded weights. Each is told once."""
    row = db.execute("SELECT * FROM roles WHERE cell = ?", (state.cell,)).fetchone()
    if state.capacity != row["capacity"] and state.capacity > 0:
        db.execute("UPDATE roles SET capacity = ? WHERE cell = ?", (state.capacity, state.cell))
    if state.phase is CellPhase.READY and state.epoch > row["acknowledged_epoch"]:
        db.execute("UPDATE roles SET acknowledged_epoch = ? WHERE cell = ?", (state.epoch, state.cell))
    if state.phase is CellPhase.READY and state.epoch > row["told_epoch"]:
        db.execute("UPDATE roles SET told_epoch = ? WHERE cell = ?", (state.epoch, state.cell))
        events.say(db, RoleAcknowledged(time=now, cell=state.cell, role=state.role, epoch=state.epoch))
    if state.epoch > row["epoch"]:  # the store is an older copy: what the agent holds was granted once, so the next grant must be above it
        db.execute("UPDATE roles SET epoch = ? WHERE cell = ?", (state.epoch + 1, state.cell))
    flip = state.last_flip
    if flip is not None and flip.epoch > row["flip_epoch"]:
        db.execute("UPDATE roles SET flip_epoch = ? WHERE cell = ?", (flip.epoch, state.cell))
        db.execute("INSERT OR IGNORE INTO flips (cell, epoch, role, seconds) VALUES (?, ?, ?, ?)", (flip.cell, flip.epoch, flip.to, flip.seconds))
        told = FlipEnded(
            time=flip.started + flip.seconds,
            cell=flip.cell,
            to=flip.to,
            epoch=flip.epoch,
            seconds=flip.seconds,
            phases=flip.phases,
            calls_in_flight=flip.calls_in_flight,
        )
        events.say(db, told)
    loaded = f"{state.policy_version} {state.weights_digest} {state.engine_incarnation}"
    if state.policy_version >= 0 and state.weights_digest and loaded != row["loaded"]:
        db.execute("UPDATE roles SET loaded = ? WHERE cell = ?", (loaded, state.cell))
        events.say(db, WeightsLoaded(time=now, cell=state.cell, version=state.policy_version, digest=state.weights_digest))

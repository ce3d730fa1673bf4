"""Cells: the role that each is granted (stored), and what its agent last reported (not stored: it reports again within seconds)."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tidemill.policy.tide import CellView
from tidemill.telemetry.events import FlipEnded, RoleAcknowledged, WeightsLoaded
from tidemill.wire.cell import CellPhase, CellState, Role
from tidemill.wire.conductor import CellTide, Grant
from tidemill.wire.http import Rejected
from tidemill_rollout.conductor import events
from tidemill_rollout.conductor.store import Database

SILENT_SECONDS = 60.0
"""An agent reports every 2 s. One that has not for this long is taken for dead until it reports again; a busy machine needs a generous limit."""


@dataclass(slots=True)
class Reports:
    """What the agents last said, and when they were last heard; a cell is given `SILENT_SECONDS` from `since` to say anything."""

    since: float
    last: dict[str, tuple[CellState, float]] = field(default_factory=dict)

    def state(self, cell: str) -> CellState | None:
        return self.last[cell][0] if cell in self.last else None

    def silent_seconds(self, cell: str, now: float) -> float:
        return now - (self.last[cell][1] if cell in self.last else self.since)


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
    def usable(self) -> bool:
        """The core always is: the job waits for it, nobody takes its place."""
        return self.is_core or not (self.failed or self.silent)

    @property
    def settled(self) -> bool:
        state = self.state
        return state is not None and not self.silent and state.phase is CellPhase.READY and (state.role, state.epoch) == (self.role, self.epoch)

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
        return CellView(self.name, self.capacity, self.role is Role.ROLLOUT, self.settled, self.usable)

    def tide(self) -> CellTide:
        return CellTide(self.name, self.ordinal, self.capacity, self.role, self.epoch, self.state, self.standalone)


def create(db: Database, cells: int, standalone: int, capacity: int, now: float) -> None:
    """Every cell begins in rollout, epoch 1. Cells that are already known keep their grants."""
    rows = [(f"cell-{n}", n, 0) for n in range(cells)] + [(f"standalone-{n}", n, 1) for n in range(standalone)]
    db.executemany(
        "INSERT OR IGNORE INTO roles (cell, ordinal, standalone, capacity, role, epoch, granted) VALUES (?, ?, ?, ?, 'Rollout', 1, ?)",
        [(*row, capacity, now) for row in rows],
    )


def forget_what_was_told(db: Database) -> None:
    """After a restart every acknowledged role is told again: while the job was stopped no cell had one, so its readers begin anew."""
    db.execute("UPDATE roles SET told_epoch = 0")


def read(db: Database, reports: Reports, now: float) -> tuple[Cell, ...]:
    """All cells: those that change role in flip order, then the standalone ones."""
    digests = dict(db.execute("SELECT version, digest FROM versions").fetchall())
    cells = []
    for row in db.execute("SELECT * FROM roles ORDER BY standalone, ordinal"):
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
            )
        )
    return tuple(cells)


def grant(db: Database, cell: str, role: Role, destinations: tuple[str, ...], now: float) -> None:
    """The next epoch of `cell`."""
    db.execute(
        "UPDATE roles SET role = ?, epoch = epoch + 1, destinations = ?, granted = ? WHERE cell = ?",
        (role, msgspec.json.encode(destinations).decode(), now, cell),
    )


def current_grant(db: Database, cell: str) -> Grant:
    row = db.execute("SELECT * FROM roles WHERE cell = ?", (cell,)).fetchone()
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

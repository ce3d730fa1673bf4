"""The conductor's store: the schema, and transactions. SQLite, one writer.

What changes one row from one state to another stands in the module that is named after the row; nothing else writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.wire.http import Unreachable
from tidemill_rollout.lasting import Lasting

Database = sqlite3.Connection

SCHEMA = """
CREATE TABLE IF NOT EXISTS job (
  only INTEGER PRIMARY KEY CHECK (only = 1), name TEXT NOT NULL, created REAL NOT NULL,
  phase TEXT NOT NULL CHECK (phase IN ('Running', 'Succeeded', 'Failed')), reason TEXT NOT NULL DEFAULT '',
  committed_steps INTEGER NOT NULL DEFAULT 0,
  trained_at REAL,                          -- when the last publication was made, once all steps are committed
  leases INTEGER NOT NULL DEFAULT 0,        -- handed out so far: the next lease's number
  term INTEGER NOT NULL DEFAULT 0, holder TEXT NOT NULL DEFAULT '',
  probes INTEGER NOT NULL DEFAULT 0,        -- writes that only asked whether the disk takes any
  metrics_bytes INTEGER NOT NULL DEFAULT 0  -- length of metrics.jsonl up to the last event that left `events`
) STRICT;
CREATE TABLE IF NOT EXISTS bursts (
  burst INTEGER PRIMARY KEY, first_step INTEGER NOT NULL, steps INTEGER NOT NULL, version INTEGER NOT NULL, began REAL NOT NULL, ended REAL
) STRICT;
CREATE TABLE IF NOT EXISTS evaluations (version INTEGER PRIMARY KEY, began REAL NOT NULL, ended REAL) STRICT;
CREATE TABLE IF NOT EXISTS groups (
  id INTEGER PRIMARY KEY, purpose TEXT NOT NULL CHECK (purpose IN ('Train', 'Evaluate')), task TEXT NOT NULL,
  version INTEGER NOT NULL,                 -- policy version it was dispatched under
  state TEXT NOT NULL CHECK (state IN ('Open', 'Ready', 'Assigned', 'Trained', 'Measured', 'Dropped')),
  created REAL NOT NULL, started REAL, ended REAL, step INTEGER, reason TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS groups_by_state ON groups (state);
CREATE TABLE IF NOT EXISTS executions (
  id TEXT PRIMARY KEY, group_id INTEGER NOT NULL REFERENCES groups (id),
  state TEXT NOT NULL CHECK (state IN ('Pending', 'Running', 'Evaluating', 'Scored', 'Dropped')),
  attempt INTEGER NOT NULL DEFAULT 1,
  failures INTEGER NOT NULL DEFAULT 0,      -- attempts that the infrastructure failed; a restart of the conductor is none
  score REAL, reason TEXT NOT NULL DEFAULT '', created REAL NOT NULL, started REAL, ended REAL,
  turns INTEGER NOT NULL DEFAULT 0, sampled_tokens INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS executions_by_group ON executions (group_id);
CREATE INDEX IF NOT EXISTS executions_by_state ON executions (state, started);
CREATE TABLE IF NOT EXISTS turns (
  number INTEGER PRIMARY KEY, execution TEXT NOT NULL REFERENCES executions (id), id TEXT NOT NULL, record BLOB NOT NULL, UNIQUE (execution, id)
) STRICT;
CREATE TABLE IF NOT EXISTS steps (
  step INTEGER PRIMARY KEY, burst INTEGER NOT NULL REFERENCES bursts (burst), opened REAL NOT NULL,
  closed REAL,                              -- no more groups: every micro-step exists
  committed REAL, checkpoint TEXT NOT NULL DEFAULT '', digest TEXT NOT NULL DEFAULT '',
  staleness INTEGER NOT NULL DEFAULT 0,     -- largest, in publications; beside it in optimizer updates
  staleness_updates INTEGER NOT NULL DEFAULT 0, mean_score REAL
) STRICT;
CREATE TABLE IF NOT EXISTS microsteps (
  id TEXT PRIMARY KEY, step INTEGER NOT NULL REFERENCES steps (step), place INTEGER NOT NULL, group_id INTEGER NOT NULL REFERENCES groups (id),
  state TEXT NOT NULL CHECK (state IN ('Queued', 'Leased', 'Counted', 'Committed')), trained_tokens INTEGER NOT NULL,
  sequences BLOB,                           -- msgpack; emptied once committed
  lease TEXT UNIQUE, cell TEXT, epoch INTEGER, expires REAL, UNIQUE (step, place),
  CHECK ((state = 'Queued') = (lease IS NULL))
) STRICT;
CREATE TABLE IF NOT EXISTS trainers (       -- every incarnation that ever asked for work; the newest of a cell is the one that lives
  number INTEGER PRIMARY KEY, cell TEXT NOT NULL, incarnation TEXT NOT NULL, UNIQUE (cell, incarnation)
) STRICT;
CREATE TABLE IF NOT EXISTS versions (version INTEGER PRIMARY KEY, step INTEGER NOT NULL, digest TEXT NOT NULL, published REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS roles (
  cell TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, standalone INTEGER NOT NULL, capacity INTEGER NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('Rollout', 'Training')), epoch INTEGER NOT NULL, destinations TEXT NOT NULL DEFAULT '[]', granted REAL NOT NULL,
  acknowledged_epoch INTEGER NOT NULL DEFAULT 0, flip_epoch INTEGER NOT NULL DEFAULT 0, loaded TEXT NOT NULL DEFAULT '',
  told_epoch INTEGER NOT NULL DEFAULT 0     -- the last whose acknowledgement is among this run's events
) STRICT;
CREATE TABLE IF NOT EXISTS constraints (     -- what a person wants of a cell; no row: nothing
  cell TEXT PRIMARY KEY REFERENCES roles (cell), pinned TEXT NOT NULL CHECK (pinned IN ('', 'Rollout', 'Training')), cordoned INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS conditions (kind TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS retired (         -- standalone cells that were taken out of the pool; their epochs are not used again
  cell TEXT PRIMARY KEY REFERENCES roles (cell)
) STRICT;
CREATE TABLE IF NOT EXISTS flips (           -- as they were measured
  cell TEXT NOT NULL, epoch INTEGER NOT NULL, role TEXT NOT NULL, seconds REAL NOT NULL, UNIQUE (cell, epoch)
) STRICT;
CREATE TABLE IF NOT EXISTS trainings (       -- what committed steps took to compute, of all cells together
  step INTEGER PRIMARY KEY, groups INTEGER NOT NULL, sampled_tokens INTEGER NOT NULL, trained_tokens INTEGER NOT NULL, seconds REAL NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS changes (         -- of settings, since the job began
  only INTEGER PRIMARY KEY CHECK (only = 1), told TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS events (number INTEGER PRIMARY KEY AUTOINCREMENT, line BLOB NOT NULL) STRICT;
"""

_CANNOT_WRITE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY}


class Unwritable(Unreachable):
    """The store cannot be written. Nothing has changed and nothing is acknowledged: the caller repeats, as with any call that found nobody."""


class Store:
    """`conductor.db`. A change is durable when `transaction` returns, also against power loss: gateways forget what was acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_change: Callable[[], None] = lambda: None
        self._file = Lasting(path)
        with self.transaction() as db:
            for statement in SCHEMA.split(";\n"):
                db.execute(statement)

    @property
    def db(self) -> Database:
        return self._file.connection

    @contextmanager
    def transaction(self) -> Iterator[Database]:
        """All of it or nothing. Never awaited inside, so transactions of one process cannot interleave.

        Raises:
            Unwritable: the disk is full or broken.
            Replaced: somebody has put another file in the store's place.
        """
        before = 0
        try:
            self._file.ensure()
            before = self.db.total_changes
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as cause:
            if cause.sqlite_errorcode & 0xFF not in _CANNOT_WRITE:
                raise
            raise Unwritable(f"{self.path}: {cause}; free space on its disk, the job goes on by itself") from cause
        if self.db.total_changes != before:
            self.on_change()

    def copy_to(self, path: Path) -> None:
        """A consistent copy, from any thread. Replaces what is there."""
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        source = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=rw", uri=True)  # a plain one would make a file that was deleted
        try:
            source.execute("VACUUM INTO ?", (str(part),))
        finally:
            source.close()
        part.replace(path)

    def copy_beside(self, checkpoints: Path, checkpoint: str) -> None:
        """Into a checkpoint's folder, from any thread; nothing where there is no such folder, or a name that leads out of `checkpoints`."""
        folder = (checkpoints / checkpoint).resolve()
        if checkpoint and folder.is_dir() and folder.is_relative_to(checkpoints.resolve()):
            self.copy_to(folder / "conductor.db")

    def close(self) -> None:
        self.db.close()

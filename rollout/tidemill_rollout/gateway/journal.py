"""What the gateway must not forget: open executions, finished turns until the conductor has them, routes. SQLite, many writes in one commit."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tidemill.telemetry.logs import Log
from tidemill.wire.gateway import OpenExecution, Route
from tidemill_rollout.gateway.turns import Kept
from tidemill_rollout.lasting import Lasting

RETRY_SECONDS = 1.0

SPARE_PAGES = 2048
"""Free pages that the file keeps for what comes next, 8 MB. The others are given back, a few with every commit."""

VACUUM_PAGES = 1000

REMEMBERED = 20_000
"""Closed executions whose last attempt is still known. An order for one of before comes too late to be for it."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS executions (id TEXT PRIMARY KEY, attempt INTEGER NOT NULL, opened BLOB, turns INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS turns (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, execution TEXT NOT NULL, kept BLOB NOT NULL,
    answered INTEGER NOT NULL DEFAULT 0, acknowledged INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS turns_of_execution ON turns (execution);
CREATE TABLE IF NOT EXISTS routes (cell TEXT PRIMARY KEY, epoch INTEGER NOT NULL, route BLOB);
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""

log = Log(__name__)


@dataclass(frozen=True, slots=True)
class KeptTurn:
    kept: Kept
    answered: bool  # the harness has the whole answer
    acknowledged: bool  # the conductor has the turn


@dataclass(frozen=True, slots=True)
class Replay:
    """What a gateway that starts finds."""

    executions: list[OpenExecution]
    closed: dict[str, tuple[int, int]]  # execution -> attempt, turns
    turns: list[KeptTurn]  # in the order they ended
    routes: list[tuple[str, int, Route | None]]
    counters: dict[str, int]


@dataclass(slots=True)
class _Write:
    statements: tuple[tuple[str, tuple[Any, ...]], ...]
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Journal:
    """Writes are awaited until they are on disk, or thrown in with `later` where a lost one does no harm."""

    def __init__(self, path: Path, retry_seconds: float = RETRY_SECONDS) -> None:
        self._path = path
        self._retry_seconds = retry_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._queue: asyncio.Queue[_Write] = asyncio.Queue()
        self.condition = ""
        """Why nothing can be written now, for people; "" when all is well."""
        self._file = Lasting(path, any_thread=True)
        if not self.connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone():  # in a new file, and there alone
            self.connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            self.connection.execute("VACUUM")
        self.connection.executescript(_SCHEMA)

    @property
    def connection(self) -> sqlite3.Connection:
        return self._file.connection

    def replay(self) -> Replay:
        rows = self.connection.execute
        opened = [blob for (blob,) in rows("SELECT opened FROM executions WHERE opened IS NOT NULL")]
        turns = rows("SELECT kept, answered, acknowledged FROM turns ORDER BY number")
        routes = rows("SELECT cell, epoch, route FROM routes")
        return Replay(
            executions=[msgspec.msgpack.decode(blob, type=OpenExecution) for blob in opened],
            closed={name: (attempt, count) for name, attempt, count in rows("SELECT id, attempt, turns FROM executions WHERE opened IS NULL")},
            turns=[KeptTurn(msgspec.msgpack.decode(kept, type=Kept), bool(answered), bool(known)) for kept, answered, known in turns],
            routes=[(cell, epoch, None if blob is None else msgspec.msgpack.decode(blob, type=Route)) for cell, epoch, blob in routes],
            counters=dict(rows("SELECT name, value FROM counters").fetchall()),
        )

    async def run(self) -> None:
        """Write for ever. All that has come in meanwhile goes into one commit; what can not be written is tried again until it is."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            while True:
                try:
                    await loop.run_in_executor(self._thread, self._commit, batch)
                    break
                except sqlite3.OperationalError as cause:
                    if not self.condition:
                        log.error("the journal can not be written, turns are held back", path=str(self._path), reason=str(cause))
                    self.condition = f"journal {self._path.name}: {cause}; turns are held back until it can be written: free space on its disk"
                    await asyncio.sleep(self._retry_seconds)
            if self.condition:
                log.info("the journal can be written again", path=str(self._path))
                self.condition = ""
            for write in batch:
                if not write.done.done():
                    write.done.set_result(None)

    async def flush(self) -> None:
        """Wait until everything thrown in so far is on disk."""
        await self._write()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self.connection.close()

    def open_execution(self, opened: OpenExecution) -> Awaitable[None]:
        """Also forgets the turns of earlier attempts."""
        name = opened.execution
        row = (name, opened.attempt, msgspec.msgpack.encode(opened))
        return self._write(
            ("DELETE FROM turns WHERE execution = ?", (name,)),
            ("INSERT OR REPLACE INTO executions (id, attempt, opened) VALUES (?, ?, ?)", row),
        )

    def close_execution(self, execution: str, attempt: int, turns: int) -> Awaitable[None]:
        """The conductor has all its turns: they go, so that the journal does not grow with the job."""
        return self._write(
            ("DELETE FROM turns WHERE execution = ?", (execution,)),
            ("INSERT OR REPLACE INTO executions (id, attempt, opened, turns) VALUES (?, ?, NULL, ?)", (execution, attempt, turns)),
            ("DELETE FROM executions WHERE opened IS NULL AND rowid <= (SELECT MAX(rowid) FROM executions) - ?", (REMEMBERED,)),
        )

    def keep(self, kept: Kept, counts: dict[str, int]) -> Awaitable[None]:
        """A finished turn; `counts` is what it adds to the counters."""
        turn = kept.turn
        row = (turn.id, turn.execution, msgspec.msgpack.encode(kept))
        return self._write(("INSERT OR REPLACE INTO turns (id, execution, kept) VALUES (?, ?, ?)", row), *_counting(counts))

    def count(self, counts: dict[str, int]) -> None:
        self._later(*_counting(counts))

    def answered(self, turn: str) -> None:
        self._later(("UPDATE turns SET answered = 1 WHERE id = ?", (turn,)))

    def acknowledged(self, turns: list[str]) -> None:
        self._later(*(("UPDATE turns SET acknowledged = 1 WHERE id = ?", (turn,)) for turn in turns))

    def route(self, cell: str, epoch: int, route: Route | None) -> None:
        blob = None if route is None else msgspec.msgpack.encode(route)
        self._later(("INSERT OR REPLACE INTO routes (cell, epoch, route) VALUES (?, ?, ?)", (cell, epoch, blob)))

    async def _write(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        write = _Write(statements)
        self._queue.put_nowait(write)
        await write.done

    def _later(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        self._queue.put_nowait(_Write(statements))

    def _commit(self, batch: list[_Write]) -> None:
        self._file.ensure()
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            for write in batch:
                for statement, values in write.statements:
                    self.connection.execute(statement, values)
            self.connection.execute("COMMIT")
        except sqlite3.Error:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        self._give_back()

    def _give_back(self) -> None:
        """Executions that are over have left free pages."""
        [free] = self.connection.execute("PRAGMA freelist_count").fetchone()
        if free > SPARE_PAGES:
            self.connection.execute(f"PRAGMA incremental_vacuum({min(free - SPARE_PAGES, VACUUM_PAGES)})").fetchall()


def _counting(counts: dict[str, int]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    statement = "INSERT INTO counters (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value"
    return tuple((statement, (name, added)) for name, added in counts.items() if added)

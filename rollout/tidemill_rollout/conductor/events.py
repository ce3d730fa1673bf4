"""Events leave the store for `metrics.jsonl` exactly once, in order, whatever dies in between."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidemill.telemetry.events import Event
from tidemill.wire.http import Rejected
from tidemill_rollout.conductor.store import Database, Store, Unwritable

MOST_BYTES = 4 * 2**20
"""Of one answer; a line is some hundred bytes long."""


def say(db: Database, event: Event) -> None:
    """Part of the transaction that changes what the event tells of."""
    db.execute("INSERT INTO events (line) VALUES (?)", (msgspec.json.encode(event) + b"\n",))


class Outbox:
    """Appends stored events to the file, then notes its new length. What was appended but not noted is cut off and appended again."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path

    def flush(self) -> None:
        """Raises `Unwritable` when the file or the store cannot be written; nothing is lost then."""
        rows = self._store.db.execute("SELECT number, line FROM events ORDER BY number").fetchall()
        if not rows:
            return
        (noted,) = self._store.db.execute("SELECT metrics_bytes FROM job").fetchone()
        try:
            with self._path.open("ab") as file:
                file.truncate(min(noted, file.tell()))
                file.write(b"".join(row["line"] for row in rows))
                file.flush()
                length = file.tell()
        except OSError as cause:
            raise Unwritable(f"{self._path}: {cause.strerror}; free space on its disk, the job goes on by itself") from cause
        with self._store.transaction() as db:
            db.execute("DELETE FROM events WHERE number <= ?", (rows[-1]["number"],))
            db.execute("UPDATE job SET metrics_bytes = ?", (length,))

    def read(self, after: int) -> bytes:
        """Whole lines from byte `after` on, a part of them when there are many. Raises `Rejected` when there are not so many bytes."""
        (length,) = self._store.db.execute("SELECT metrics_bytes FROM job").fetchone()
        if not 0 <= after <= length:
            raise Rejected(416, f"events after {after}: there are {length} bytes of them; begin anew with 0")
        if after == length:
            return b""
        with self._path.open("rb") as file:
            file.seek(after)
            told = file.read(min(length - after, MOST_BYTES))
        return told[: told.rfind(b"\n") + 1]

"""Events leave the store for `metrics.jsonl` exactly once, in order, whatever dies in between."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidemill.telemetry.events import Event
from tidemill_rollout.conductor.store import Database, Store, Unwritable


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

"""A SQLite database of one writer whose file may be deleted under it: what is open is still whole, and is written anew."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from tidemill.telemetry.logs import Log

_log = Log(__name__)


class Replaced(Exception):
    """Another file lies where the database was opened: to write over it would destroy it, to go on in the old one would lose all that follows."""


class Lasting:
    """`connection` is another one after `ensure` has written the file anew."""

    def __init__(self, path: Path, timeout: float = 5.0, any_thread: bool = False) -> None:
        self.path = path
        self._timeout = timeout
        self._any_thread = any_thread
        self.connection = self._open()

    def ensure(self) -> None:
        """Before a transaction: the file and its log are where they were.

        Raises:
            Replaced
            sqlite3.OperationalError: it is gone, and cannot be written anew.
        """
        lies = _stamps(self.path)
        if lies == self._files:
            return
        if lies[0] is not None and lies[0] != self._files[0]:
            raise Replaced(f"{self.path}: another file has taken its place; put the former one back, or begin in another folder")
        _log.error("a database was deleted while it was open, it is written anew", path=str(self.path))
        self._write_anew()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=self._timeout, check_same_thread=not self._any_thread)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE")  # makes the log, so that both files can be watched
        connection.execute("COMMIT")
        self._files = _stamps(self.path)
        return connection

    def _write_anew(self) -> None:
        part = self.path.with_name(f".{self.path.name}.anew")
        part.unlink(missing_ok=True)
        self.connection.execute("VACUUM INTO ?", (str(part),))
        for path in (part, part.parent):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        self.connection.close()  # removes a log of this name, so before there is a new one
        _log_of(self.path).unlink(missing_ok=True)
        part.replace(self.path)
        self.connection = self._open()


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _stamps(path: Path) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    return _stamp(path), _stamp(_log_of(path))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino

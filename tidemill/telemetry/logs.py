"""Structured logs: one event a line, JSON, with the fields that find it again (job, cell, execution, epoch)."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_ABOUT: ContextVar[dict[str, Any] | None] = ContextVar("about", default=None)


class _Lines(logging.Formatter):
    def __init__(self, process: str, fields: dict[str, Any]) -> None:
        super().__init__()
        self._fixed = {"process": process, **fields}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._fixed,
            **(_ABOUT.get() or {}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _StandardError(logging.Handler):
    """To what is standard error when a line comes: a live view puts itself in between, so that lines do not tear it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # as logging's own: a log that cannot be written ends nothing
            self.handleError(record)


def stamp(seconds: float) -> str:
    """Unix seconds as a log writes them; texts sort as times do."""
    whole, part = divmod(int(seconds * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{part:03d}Z"


def start(process: str, level: int = logging.INFO, **fields: Any) -> None:
    """Send this process's logs to standard error, each line with `process` and `fields`."""
    handler = _StandardError()
    handler.setFormatter(_Lines(process, fields))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("asyncio", "aiohttp.access", "httpx", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Every line that this task and the tasks it starts write meanwhile has these fields, whoever writes it."""
    token = _ABOUT.set({**(_ABOUT.get() or {}), **fields})
    try:
        yield
    finally:
        _ABOUT.reset(token)


class Log:
    """`log = Log(__name__); log.info("flip ended", cell="cell-1", epoch=3)`: the message is constant, what varies is a field."""

    def __init__(self, name: str, **fields: Any) -> None:
        self._logger = logging.getLogger(name)
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        return Log(self._logger.name, **{**self._fields, **fields})

    def info(self, event: str, **fields: Any) -> None:
        self._logger.info(event, extra={"fields": {**self._fields, **fields}})

    def warning(self, event: str, **fields: Any) -> None:
        self._logger.warning(event, extra={"fields": {**self._fields, **fields}})

    def error(self, event: str, **fields: Any) -> None:
        self._logger.error(event, extra={"fields": {**self._fields, **fields}})

    def exception(self, event: str, **fields: Any) -> None:
        self._logger.exception(event, extra={"fields": {**self._fields, **fields}})

"""Follows the job's events and hands what they make on to somebody outside, again until it is taken. A copy: whatever fails here stops nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidemill.telemetry.events import AnyEvent
from tidemill.telemetry.logs import Log

type Source = Callable[[int, float], Awaitable[bytes]]
"""Whole lines of `metrics.jsonl` from a byte on, waiting some seconds for the first."""

WAIT_SECONDS = 30.0
RETRY_SECONDS = 30.0

_log = Log(__name__)
_decoder = msgspec.json.Decoder(AnyEvent)


class Sink[T](Protocol):
    """Called from a thread, never twice at a time. May raise whatever its service raises: the same items are offered again later."""

    def write(self, items: Sequence[T]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outlet[T]:
    name: str
    fold: Callable[[AnyEvent], Iterable[T]]  # called with every event from the first on, in a thread; what was handed on before is not iterated
    opening: Callable[[], Sink[T]]


async def follow(source: Source, outlets: Sequence[Outlet[Any]], marks: Path, ending: asyncio.Event, retry_seconds: float = RETRY_SECONDS) -> None:
    """Until `ending` is set and what there is has been taken, or could not be. `marks` is a folder that remembers how far each outlet has come."""
    async with asyncio.TaskGroup() as tasks:
        for outlet in outlets:
            tasks.create_task(_Following(source, outlet, marks / f"{outlet.name}.mark", ending, retry_seconds).run())


class _Following[T]:
    """Of one outlet. A crash between writing and marking hands items on twice: who takes them must not mind."""

    def __init__(self, source: Source, outlet: Outlet[T], mark: Path, ending: asyncio.Event, retry_seconds: float) -> None:
        self._source = source
        self._outlet = outlet
        self._mark = mark
        self._ending = ending
        self._retry_seconds = retry_seconds
        self._sink: Sink[T] | None = None
        self._read = 0  # bytes of events
        self._taken = 0  # bytes whose items the sink has

    async def run(self) -> None:
        try:
            await self._follow()
        except Exception:  # of nobody's making outside: the job must not end for it
            _log.exception("an outlet is given up until the next start", outlet=self._outlet.name)

    async def _follow(self) -> None:
        self._taken = await asyncio.to_thread(_marked, self._mark)
        while lines := await self._next_lines():
            items = await asyncio.to_thread(self._items, lines)
            while items:
                try:
                    await asyncio.to_thread(self._write, items)
                    items = []
                except Exception as trouble:  # whatever a service's client raises
                    _log.warning("not taken; offered again later", outlet=self._outlet.name, reason=str(trouble))
                    if await self._ends_within(self._retry_seconds):
                        return
        if self._sink is not None:
            with contextlib.suppress(Exception):
                await asyncio.to_thread(self._sink.close)

    async def _next_lines(self) -> bytes:
        """Empty when there is nothing more and the end has come."""
        while True:
            over = self._ending.is_set()
            asking = asyncio.ensure_future(self._source(self._read, 0.0 if over else WAIT_SECONDS))
            ending = asyncio.ensure_future(self._ending.wait())
            try:
                await asyncio.wait((asking,) if over else (asking, ending), return_when=asyncio.FIRST_COMPLETED)
                if asking.done() and (asking.result() or over):
                    return asking.result()
            finally:
                asking.cancel()
                ending.cancel()

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)
        return self._ending.is_set()

    def _items(self, lines: bytes) -> list[T]:
        """Those that were not handed on before."""
        items: list[T] = []
        for line in lines.splitlines(keepends=True):
            self._read += len(line)
            with contextlib.suppress(msgspec.MsgspecError):  # of a damaged disk; the report says so
                made = self._outlet.fold(_decoder.decode(line))
                items += made if self._read > self._taken else ()
        return items

    def _write(self, items: list[T]) -> None:
        if self._sink is None:
            self._sink = self._outlet.opening()
        self._sink.write(items)
        self._taken = self._read
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        beside = self._mark.with_suffix(".new")
        beside.write_text(f"{self._taken}\n")
        beside.replace(self._mark)


def _marked(mark: Path) -> int:
    try:
        return int(mark.read_text())
    except (OSError, ValueError):
        return 0

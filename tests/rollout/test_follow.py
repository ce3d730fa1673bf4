"""Events are handed on once, again when they are not taken, and to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pytest

from tidemill.telemetry.events import AnyEvent, Event, GroupDropped, VersionPublished
from tidemill_rollout.follow import Outlet, follow


def step(number: int) -> Event:
    """Something that makes an item."""
    return VersionPublished(time=float(number), version=number, step=number, digest="a")


class Counting:
    """Makes an item of each publication: how many groups had been dropped before."""

    def __init__(self) -> None:
        self.dropped = 0

    def after(self, event: AnyEvent) -> Iterable[tuple[int, int]]:
        if isinstance(event, GroupDropped):
            self.dropped += 1
        return ((event.step, self.dropped),) if isinstance(event, VersionPublished) else ()


DROPPED = GroupDropped(time=1.0, group=1, task="t", reason="Stale")


class Events:
    """A conductor's `events`: what there is, at once; then it waits for more."""

    def __init__(self, *events: Event) -> None:
        self.lines = b""
        self.more = asyncio.Event()
        self.add(*events)

    def add(self, *events: Event) -> None:
        self.lines += b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        self.more.set()

    async def __call__(self, after: int, wait_seconds: float) -> bytes:
        while len(self.lines) == after and wait_seconds:
            self.more.clear()
            await self.more.wait()
        return self.lines[after:]


class Recorder:
    def __init__(self, failures: int = 0) -> None:
        self.items: list[tuple[int, int]] = []
        self.failures = failures
        self.written = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def write(self, items: Sequence[tuple[int, int]]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("no room")
        self.items += items
        self._loop.call_soon_threadsafe(self.written.set)

    def close(self) -> None: ...


def outlet(sink: Recorder) -> Outlet[tuple[int, int]]:
    return Outlet("sink", Counting().after, lambda: sink)


async def one_life(events: Events, sink: Recorder, marks: Path) -> None:
    """One life of a conductor that is told to end at once."""
    ending = asyncio.Event()
    ending.set()
    await asyncio.wait_for(follow(events, [outlet(sink)], marks, ending, retry_seconds=0.0), 10.0)


async def test_a_restart_hands_on_what_is_new_knowing_what_was_before(tmp_path: Path) -> None:
    first, second, events = Recorder(), Recorder(), Events(DROPPED, step(1))
    await one_life(events, first, tmp_path)
    events.add(DROPPED, step(2))
    await one_life(events, second, tmp_path)
    assert (first.items, second.items) == ([(1, 1)], [(2, 2)])


async def test_what_is_not_taken_is_offered_again_until_it_is(tmp_path: Path) -> None:
    sink, ending = Recorder(failures=3), asyncio.Event()
    following = asyncio.create_task(follow(Events(step(1), step(2)), [outlet(sink)], tmp_path, ending, retry_seconds=0.0))
    async with asyncio.timeout(10.0):
        await sink.written.wait()
        ending.set()
        await following
    assert sink.items == [(1, 0), (2, 0)]


async def test_a_sink_that_fails_at_the_end_holds_nothing_up_and_the_next_life_hands_on_what_it_missed(tmp_path: Path) -> None:
    events, second = Events(step(1)), Recorder()
    await one_life(events, Recorder(failures=1), tmp_path)
    await one_life(events, second, tmp_path)
    assert second.items == [(1, 0)]


async def test_a_sink_that_cannot_be_opened_holds_up_no_other(tmp_path: Path) -> None:
    def refuse() -> Recorder:
        raise OSError("no such host")

    sink, ending = Recorder(), asyncio.Event()
    ending.set()
    outlets = [Outlet("broken", Counting().after, refuse), outlet(sink)]
    await asyncio.wait_for(follow(Events(step(1)), outlets, tmp_path, ending, retry_seconds=0.0), 10.0)
    assert sink.items == [(1, 0)]


async def test_what_comes_while_it_waits_is_handed_on(tmp_path: Path) -> None:
    events, sink, ending = Events(), Recorder(), asyncio.Event()
    following = asyncio.create_task(follow(events, [outlet(sink)], tmp_path, ending))
    await asyncio.sleep(0)
    events.add(step(1))
    async with asyncio.timeout(10.0):
        await sink.written.wait()
        ending.set()
        await following
    assert sink.items == [(1, 0)]


async def test_a_broken_line_costs_itself_and_nothing_else(tmp_path: Path) -> None:
    events, sink = Events(step(1)), Recorder()
    events.lines += b"{broken\n"
    events.add(step(2))
    await one_life(events, sink, tmp_path)
    assert sink.items == [(1, 0), (2, 0)]


async def test_events_that_cannot_be_read_end_the_outlet_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(after: int, wait_seconds: float) -> bytes:
        raise OSError("the disk is gone")

    await asyncio.wait_for(follow(broken, [outlet(Recorder())], tmp_path, asyncio.Event()), 10.0)
    assert "an outlet is given up until the next start" in caplog.messages

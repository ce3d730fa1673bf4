from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.telemetry.stopwatch import Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["", "work", "rest"]), st.none() | st.floats(-200, 400))))
def test_every_second_is_counted_once(turns: list[tuple[float, str, float | None]]) -> None:
    clock = Clock()
    watch = Stopwatch("work", clock)
    for seconds, what, since in turns:
        clock.now += seconds
        before = watch.seconds()
        watch.turn_to(what, since)
        assert all(spent >= 0 for spent in watch.seconds().values())
        if since is None:
            assert all(spent == pytest.approx(watch.seconds()[name]) for name, spent in before.items())
    uncounted = Stopwatch("", clock)
    assert uncounted.seconds() == {}
    if all(what for _, what, _ in turns):
        assert sum(watch.seconds().values()) == pytest.approx(clock.now - 100.0)


def test_what_is_only_known_afterwards_is_counted_from_when_it_began_but_not_from_before_what_is_counted_already() -> None:
    clock = Clock()
    watch = Stopwatch("work", clock)
    clock.now += 10
    watch.turn_to("rest", since=104.0)
    assert watch.seconds() == {"work": 4.0, "rest": 6.0}
    watch.turn_to("work", since=90.0)
    assert watch.seconds() == {"work": 10.0, "rest": 0.0}

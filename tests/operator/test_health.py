from __future__ import annotations

from tidemill_operator.health import STUCK_SECONDS, Pulse, trouble


def test_one_that_stands_by_is_well_whatever_does_not_move() -> None:
    assert trouble(Pulse(leading=False, overdue_seconds=lambda: 9999.0)) == ""


def test_a_leader_whose_jobs_wait_or_whose_watches_are_dead_is_to_be_restarted() -> None:
    assert trouble(Pulse(leading=True)) == ""
    assert "waiting for a pass" in trouble(Pulse(leading=True, overdue_seconds=lambda: STUCK_SECONDS + 1))
    assert "watches of Pod" in trouble(Pulse(leading=True, stale_watches=lambda: {"Pod"}))

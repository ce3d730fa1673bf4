from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.telemetry.events import AnyEvent, FlipEnded, JobStarted, RoleAcknowledged
from tidemill.telemetry.roles import role_spans
from tidemill.wire.cell import Role

STARTED = JobStarted(time=0.0, job="tiny", mode="Elastic", steps=1, cells=("cell-0",), capacities=(4,), cores_shared=False)


def acknowledged(time: float, role: Role, epoch: int) -> RoleAcknowledged:
    return RoleAcknowledged(time=time, cell="cell-0", role=role, epoch=epoch)


def flip(time: float, to: Role, epoch: int, seconds: float) -> FlipEnded:
    return FlipEnded(time=time, cell="cell-0", to=to, epoch=epoch, seconds=seconds, phases={}, calls_in_flight=0)


def test_a_role_begins_when_its_flip_ended_and_not_when_the_conductor_heard_of_it() -> None:
    told: list[AnyEvent] = [STARTED, acknowledged(1.0, Role.ROLLOUT, 1), acknowledged(14.0, Role.TRAINING, 2), flip(12.0, Role.TRAINING, 2, 2.0)]
    assert [(span.role, span.start, span.end) for span in role_spans(told, 20.0)] == [
        ("Rollout", 1.0, 10.0),
        ("Flipping", 10.0, 12.0),
        ("Training", 12.0, 20.0),
    ]


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.01, 5), st.floats(0, 3)), max_size=12))
def test_spans_of_a_cell_follow_each_other_and_flips_are_as_long_as_they_were_measured(flips: list[tuple[float, float, float]]) -> None:
    """Each flip: seconds in the role before it, its own, and how long the conductor took to hear of it, which is before the next begins."""
    told: list[AnyEvent] = [STARTED, acknowledged(0.0, Role.ROLLOUT, 1)]
    now = 0.0
    for number, (before, seconds, late) in enumerate(flips):
        to = Role.TRAINING if number % 2 == 0 else Role.ROLLOUT
        now += before + (flips[number - 1][2] if number else 0.0) + seconds
        told += [acknowledged(now + late, to, number + 2), flip(now, to, number + 2, seconds)]
    until = now + 10.0
    spans = role_spans(told, until)
    assert [span.end for span in spans[:-1]] == pytest.approx([span.start for span in spans[1:]])
    assert sum(span.end - span.start for span in spans) == pytest.approx(until)
    assert [s.end - s.start for s in spans if s.role == "Flipping"] == pytest.approx([seconds for _, seconds, _ in flips])

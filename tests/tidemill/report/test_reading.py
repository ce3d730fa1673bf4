"""Where a job stands, read off its events."""

from tidemill.report.live import line
from tidemill.report.reading import Reading
from tidemill.telemetry.events import (
    AnyEvent,
    ConditionChanged,
    FlipEnded,
    JobEnded,
    JobStarted,
    RoleAcknowledged,
    StepCommitted,
    TideRead,
    VersionPublished,
    WeightsLoaded,
)
from tidemill.wire.cell import Role

START = JobStarted(time=1.0, job="tiny", mode="Elastic", steps=4, cells=("cell-0", "cell-1"), capacities=(4, 4), cores_shared=True)
STEP = StepCommitted(
    time=5.0, step=1, seconds=1.0, groups=2, executions=4, trained_tokens=9, mean_score=0.5, staleness=2, statistics={}, contributions={}
)
EVENTS: tuple[AnyEvent, ...] = (
    START,
    RoleAcknowledged(time=2.0, cell="cell-0", role=Role.ROLLOUT, epoch=1),
    TideRead(time=3.0, dispatched=8, started=6, terminated=3, rollout_capacity=4, ready_groups=1, step=0, burst=1),
    FlipEnded(time=4.0, cell="cell-0", to=Role.TRAINING, epoch=2, seconds=1.5, phases={}, calls_in_flight=2),
    RoleAcknowledged(time=4.0, cell="cell-0", role=Role.TRAINING, epoch=2),
    STEP,
    VersionPublished(time=6.0, version=1, step=1, digest="d"),
    WeightsLoaded(time=6.0, cell="cell-0", version=1, digest="d"),
    ConditionChanged(time=7.0, kind="Disk", text="the disk is full"),
)


def read(*events: AnyEvent) -> Reading:
    reading = Reading()
    for event in events:
        reading.take(event)
    return reading


def test_the_view_says_what_the_events_say() -> None:
    view = read(*EVENTS).view()
    assert view is not None
    assert line(view) == (
        "step 1/4 burst 1 version 1 water 5/4 running 3 finished 3 ready 1 score 0.50 cell-0=Training cell-1=Starting ! the disk is full"
    )
    assert [(c.epoch, c.policy_version, c.last_flip) for c in view.cells] == [(2, 1, "to Training in 1.5 s, 2 answers moved"), (0, -1, "")]
    assert view.staleness == 2


def test_a_condition_that_is_resolved_is_shown_no_more() -> None:
    view = read(*EVENTS, ConditionChanged(time=8.0, kind="Disk", text="")).view()
    assert view is not None
    assert not view.condition


def test_a_job_that_was_resumed_goes_on() -> None:
    reading = read(*EVENTS, JobEnded(time=9.0, phase="Failed"))
    assert reading.ended is not None
    reading.take(JobStarted(time=10.0, job="tiny", mode="Elastic", steps=4, cells=("cell-0",), capacities=(4,), cores_shared=True, resumed=True))
    view = reading.view()
    assert reading.ended is None
    assert view is not None
    assert [c.word for c in view.cells] == ["Starting"]


def test_there_is_nothing_to_show_before_the_start() -> None:
    assert read().view() is None

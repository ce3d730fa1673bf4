"""The events of a job, whatever is left of them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidemill.cluster import documents
from tidemill.cluster.history import decoded, mended, what_is_left
from tidemill.cluster.objects import job_of
from tidemill.cluster.trouble import ClusterTrouble
from tidemill.report.story import tell
from tidemill.telemetry.events import AnyEvent, JobEnded, JobStarted, RoleAcknowledged, TideRead
from tidemill.wire.cell import Role

JOB = job_of(documents.job())
WHOLE: tuple[AnyEvent, ...] = (
    JobStarted(time=1.0, job="sail", mode="Elastic", steps=12, cells=("cell-0", "cell-1"), capacities=(8, 8), cores_shared=False),
    RoleAcknowledged(time=2.0, cell="cell-1", role=Role.ROLLOUT, epoch=1),
    TideRead(time=3.0, dispatched=4, started=4, terminated=0, rollout_capacity=16, ready_groups=0, step=0, burst=1),
    RoleAcknowledged(time=4.0, cell="cell-0", role=Role.TRAINING, epoch=2),
    JobEnded(time=9.0, phase="Succeeded"),
)


@given(st.integers(0, len(WHOLE) - 1))
def test_however_much_of_the_beginning_is_missing_the_report_can_be_told(missing: int) -> None:
    history = mended(WHOLE[missing:], JOB)
    story = tell(history.events, 10.0)
    assert story is not None
    assert (story.job, story.steps_wanted, story.phase) == ("sail", 12, "Succeeded")
    assert history.whole is (missing == 0)
    assert story.seconds == 9.0 - WHOLE[missing].time


def test_events_are_read_line_by_line_and_those_of_another_version_are_refused() -> None:
    assert decoded(b"".join(msgspec.json.encode(e) + b"\n" for e in WHOLE)) == WHOLE
    assert decoded(b"") == ()
    with pytest.raises(ClusterTrouble, match="install the version that the job runs"):
        decoded(b'{"event":"of-the-future","time":1}\n')


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("Suspended", "resume it, or mount the volume claim work-sail-conductor-0"),
        ("Failed", "metrics.jsonl on the volume claim work-sail-conductor-0 until the job is deleted"),
        ("Starting", "cannot be asked (no pod); the job is Starting"),
    ],
)
def test_what_is_left_depends_on_where_the_job_stands(phase: str, words: str) -> None:
    assert words in what_is_left(job_of(documents.job(status={"phase": phase})), "no pod")

"""The report tells a job's story from its events alone."""

from pathlib import Path

from tidemill.local.summary import summarize
from tidemill.report.page import page, write_report
from tidemill.report.story import tell
from tidemill.telemetry.events import (
    AnyEvent,
    EvaluationEnded,
    ExecutionEnded,
    FlipEnded,
    JobEnded,
    JobStarted,
    RoleAcknowledged,
    StepCommitted,
    TideRead,
    VersionPublished,
)
from tidemill.wire.cell import Role


def events() -> list[AnyEvent]:
    return [
        JobStarted(time=1000, job="tiny", mode="Elastic", steps=2, cells=("cell-0", "cell-1"), capacities=(4, 4), cores_shared=True),
        RoleAcknowledged(time=1010, cell="cell-0", role=Role.ROLLOUT, epoch=1),
        RoleAcknowledged(time=1012, cell="cell-1", role=Role.ROLLOUT, epoch=1),
        EvaluationEnded(time=1015, version=0, executions=4, mean_score=0.25),
        TideRead(time=1020, dispatched=8, started=8, terminated=0, rollout_capacity=8, ready_groups=0, step=0, burst=0),
        ExecutionEnded(time=1030, execution="e1", group=0, task="<script>", seconds=10, turns=2, sampled_tokens=20, score=1.0),
        TideRead(time=1035, dispatched=8, started=8, terminated=4, rollout_capacity=4, ready_groups=1, step=0, burst=0),
        RoleAcknowledged(time=1040, cell="cell-0", role=Role.TRAINING, epoch=2),
        FlipEnded(time=1040, cell="cell-0", to=Role.TRAINING, epoch=2, seconds=4, phases={"drain": 1.0, "join": 3.0}, calls_in_flight=2),
        StepCommitted(
            time=1060,
            step=1,
            seconds=20,
            groups=1,
            executions=4,
            trained_tokens=80,
            mean_score=0.5,
            staleness=0,
            statistics={"loss": 0.1},
            contributions={"cell-0": 3},
        ),
        VersionPublished(time=1061, version=1, step=1, digest="abc"),
        JobEnded(time=1100, phase="Succeeded"),
    ]


def test_roles_and_flips_become_spans_that_do_not_overlap() -> None:
    story = tell(events(), 1100)
    assert story is not None
    core = sorted((s for s in story.spans if s.row == "cell-0"), key=lambda s: s.start)
    assert [(s.kind, s.start, s.end) for s in core] == [("Rollout", 10, 36), ("Flipping", 36, 40), ("Training", 40, 100)]
    assert story.share("cell-0", "Training") == 0.6


def test_the_page_names_what_matters_and_escapes_what_it_shows() -> None:
    story = tell(events(), 1100)
    assert story is not None
    text = page(story)
    for expected in ("1 of 2", "0.50 &rarr; 0.50", "drain 1.00, join 3.00", "the times mean nothing", "version 1 published after step 1"):
        assert expected in text
    assert "<script" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "the report must not load anything"


def test_a_flip_that_was_written_twice_counts_once() -> None:
    again = [e for e in events() if isinstance(e, FlipEnded)]
    back = FlipEnded(time=1090, cell="cell-0", to=Role.ROLLOUT, epoch=3, seconds=1, phases={}, calls_in_flight=5)
    story = tell([*events()[:-1], *again, back, events()[-1]], 1100)
    assert story is not None
    assert len(story.flips) == 2
    assert story.answers_moved == 2, "nothing is moved when a cell comes back"
    assert summarize([*events()[:-1], *again, back], None, 1100).answers_moved == story.answers_moved


def test_both_files_are_written_whole(tmp_path: Path) -> None:
    write_report(events(), 1100, tmp_path)
    assert (tmp_path / "report.html").read_text().endswith("</html>")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["report.html", "timeline.png"]


def test_a_job_that_has_not_started_has_no_story() -> None:
    assert tell([], 0) is None

"""The summary counts each thing once, whatever was written twice."""

from tests.tidemill.report.test_page import events
from tidemill.local.summary import run_spans, summarize
from tidemill.telemetry.events import ExecutionEnded, JobStarted, TideRead


def test_a_job_is_summed_up() -> None:
    summary = summarize(events(), None, 1100)
    assert (summary.steps, summary.scores, summary.phase, summary.wall_seconds) == (1, (0.5,), "Succeeded", 100)
    assert summary.evaluation == {"0": 0.25}
    assert summary.flips[0].calls_in_flight == 2
    assert summary.executions.started == 8
    assert summary.executions.lost == 7
    assert abs(summary.hours_by_role["Training"] * 3600 - 60) < 1e-6


def test_an_execution_that_ended_twice_in_the_records_counts_once() -> None:
    again = [e for e in events() if isinstance(e, ExecutionEnded)]
    assert summarize([*events(), *again], None, 1100).executions.finished == 1


def test_dropped_executions_are_counted_by_reason() -> None:
    dropped = ExecutionEnded(
        time=1050, execution="e2", group=0, task="t", seconds=1, turns=0, sampled_tokens=0, score=None, dropped="EvaluatorFailed"
    )
    summary = summarize([*events(), dropped], None, 1100)
    assert summary.executions.dropped == {"EvaluatorFailed": 1}
    assert summary.executions.lost == 6


def test_time_between_a_stop_and_a_resume_is_no_wall_time() -> None:
    first = JobStarted(time=0, job="j", mode="Elastic", steps=1, cells=(), capacities=(), cores_shared=False)
    reading = TideRead(time=10, dispatched=0, started=0, terminated=0, rollout_capacity=0, ready_groups=0, step=0, burst=0)
    second = JobStarted(time=100, job="j", mode="Elastic", steps=1, cells=(), capacities=(), cores_shared=False, resumed=True)
    assert run_spans([first, reading, second], 130) == [(0, 10), (100, 130)]

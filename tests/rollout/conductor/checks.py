"""What holds for every job that has succeeded, whatever happened to it. Read from the store and the events, not from logs."""

import itertools

from tests.rollout.conductor.world import World
from tidemill.telemetry.events import ExecutionEnded, FlipEnded, JobEnded, StepCommitted, TideRead, VersionPublished


def check(done: World) -> None:
    how = done.how
    # Every execution is accounted for, each group is trained or dropped.
    assert done.rows("SELECT COUNT(*) FROM executions WHERE state NOT IN ('Scored', 'Dropped')") == [(0,)]
    assert done.rows("SELECT COUNT(*) FROM groups WHERE state NOT IN ('Trained', 'Dropped', 'Measured')") == [(0,)]
    ends = [e.execution for e in done.of(ExecutionEnded)]
    assert sorted(ends) == sorted(name for (name,) in done.rows("SELECT id FROM executions")), "one event for each execution"
    # Each micro-step is in the weights exactly once, in the step it belongs to.
    weights = done.trainers["cell-0"].weights
    assert len(weights) == how.plan.steps
    for step, ids in enumerate(weights):
        assert sorted(ids) == sorted(name for (name,) in done.rows(f"SELECT id FROM microsteps WHERE step = {step} AND state = 'Committed'"))
    assert done.rows("SELECT COUNT(*) FROM microsteps WHERE state != 'Committed'") == [(0,)]
    # Steps and versions are told once, in order, and nothing was staler than allowed.
    assert [e.step for e in done.of(StepCommitted)] == list(range(1, how.plan.steps + 1))
    assert max(e.staleness for e in done.of(StepCommitted)) <= how.max_staleness
    assert all(e.staleness_updates >= e.staleness * how.plan.steps_per_burst for e in done.of(StepCommitted))
    bursts = -(-how.plan.steps // how.plan.steps_per_burst)
    assert [e.version for e in done.of(VersionPublished)] == list(range(bursts + 1))
    assert [e.phase for e in done.of(JobEnded)] == ["Succeeded"]
    # The waterlevel never rises inside a burst, unless groups are dispatched there.
    if how.refill:
        return
    readings = done.of(TideRead)
    for before, after in itertools.pairwise(readings):
        if before.burst == after.burst > 0:
            assert after.dispatched - after.terminated <= before.dispatched - before.terminated


def training_cells_are_a_prefix(done: World) -> bool:
    """At every moment, by the order of acknowledged flips."""
    training: set[int] = set()
    for flip in sorted(done.of(FlipEnded), key=lambda f: f.time):
        ordinal = int(flip.cell.removeprefix("cell-"))
        (training.add if flip.to == "Training" else training.discard)(ordinal)
        if flip.to == "Training" and training != set(range(len(training))):
            return False
    return True

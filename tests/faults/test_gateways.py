"""A job with two gateways, each of which is killed in mid-job: half of its harnesses knock at the wrong one, and none of them knows a retry."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.running import query
from tests.faults import stand_ins
from tests.rollout.gateway.world import TOKEN
from tidemill.trajectory.files import read_trajectory
from tidemill.wire.conductor import JobPhase
from tidemill.wire.gateway import GatewayClient
from tidemill.wire.shards import shard_of

HARNESS = '''"""Four questions, and all answers to a file. Any answer but a good one is its end."""
import json, os, urllib.request

headers = {"Authorization": "Bearer " + os.environ["TIDEMILL_API_KEY"], "Content-Type": "application/json"}
messages = []
for n in range(4):
    messages.append({"role": "user", "content": f"question {n}"})
    request = urllib.request.Request(os.environ["TIDEMILL_BASE_URL"] + "/v1/chat/completions", json.dumps({"messages": messages}).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        messages.append(json.load(answer)["choices"][0]["message"])
open("answers.txt", "w").write("\\n".join(message["content"] for message in messages[1::2]))
'''

SCORE = 'mkdir -p /logs/verifier; [ "$(wc -l < answers.txt)" = 3 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'

QUESTIONS = 4
GROUPS, N, STEPS = 4, 2, 2
NAMES = ("gateway", "gateway-1")

pytestmark = pytest.mark.timeout(180)


async def test_a_gateway_that_is_killed_holds_up_its_own_executions_only_and_nothing_is_lost(tmp_path: Path) -> None:
    stand_ins.task(tmp_path / "tasks" / "ask", HARNESS, SCORE, evaluator_seconds=20.0)
    schedule = {"groupsPerStep": GROUPS, "rolloutsPerGroup": N, "steps": STEPS}
    file = stand_ins.manifest(tmp_path, tmp_path / "tasks", {"schedule": schedule, "gateway": {"replicas": len(NAMES)}})
    async with stand_ins.running(file, tmp_path / "job", lambda prompt: "an answer") as job:
        await _in_mid_answer(job, GROUPS * N)
        job.kill("gateway-1")
        _release(job)
        async with asyncio.timeout(60):
            while (ended := {view.id for view in await job.executions() if view.state == "Scored"}) != _of(0, await _names(job)):
                assert ended <= _of(0, await _names(job))
                await asyncio.sleep(0.05)
        job.start("gateway-1")
        await job.until("the others have ended, too", lambda tide: tide.terminated == GROUPS * N)
        await _in_mid_answer(job, 2 * GROUPS * N)
        job.kill("gateway")  # at whose door all sandboxes knock
        _release(job)
        job.start("gateway")
        tide = await job.until("the job ends", lambda tide: tide.phase in stand_ins.ENDED, 90)
        states = [await GatewayClient(url, TOKEN, job.session).state() for url in job.gateway_urls]
    assert (tide.phase, tide.condition) == (JobPhase.SUCCEEDED, "")
    assert tide.started == tide.terminated == tide.dispatched == GROUPS * N * STEPS
    rows = query(tmp_path / "job" / "conductor.db", "SELECT * FROM executions")
    assert {(row["state"], row["score"], row["attempt"], row["failures"]) for row in rows} == {("Scored", 1.0, 1, 0)}
    for row in rows:
        trajectory = read_trajectory(tmp_path / "job" / "trajectories" / f"{row['id']}.msgpack")
        assert len(trajectory.turns) == row["turns"] == QUESTIONS
        assert [turn.parent for turn in trajectory.turns] == ["", *(turn.id for turn in trajectory.turns[:-1])]
    shares = Counter(shard_of(row["id"], len(NAMES)) for row in rows)
    assert min(shares[number] for number in range(len(NAMES))) > 0
    assert [state.calls for state in states] == [QUESTIONS * shares[number] for number in range(len(NAMES))]


async def _in_mid_answer(job: stand_ins.Job, started: int) -> None:
    """Return when so many executions have begun, and each that is not over waits for a second token."""
    job.engine.go.clear()
    job.engine.hold_after = 1
    await job.until("harnesses have started", lambda tide: tide.started == started)
    async with asyncio.timeout(60):
        while (await job.gateway.state()).live_calls < sum(view.state == "Running" for view in await job.executions()):
            await asyncio.sleep(0.02)


def _release(job: stand_ins.Job) -> None:
    job.engine.hold_after = None
    job.engine.go.set()


def _of(number: int, executions: set[str]) -> set[str]:
    return {name for name in executions if shard_of(name, len(NAMES)) == number}


async def _names(job: stand_ins.Job) -> set[str]:
    return {view.id for view in await job.executions()}

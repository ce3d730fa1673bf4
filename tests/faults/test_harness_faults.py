"""Harnesses and evaluators that misbehave, each as a task of one job: what is scored, what is dropped and why, and that nobody else suffers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.running import query
from tests.faults import stand_ins
from tidemill.telemetry.events import AnyEvent, ExecutionEnded, GroupDropped, JobEnded, StepCommitted, read_events
from tidemill.trajectory.files import read_trajectory
from tidemill.wire.conductor import JobPhase, Tide
from tidemill.wire.gateway import GatewayState

ASK = '''"""Ask the model once, as any client does."""
import json, os, sys, threading, time, urllib.error, urllib.request

def ask(text="go", key=os.environ["TIDEMILL_API_KEY"], base=os.environ["TIDEMILL_BASE_URL"], body=None):
    """The status, and the answer's text."""
    body = body if body is not None else json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(base + "/v1/chat/completions", body, headers), timeout=60) as answer:
            return answer.status, json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError as error:
        return 0, str(error)

'''

HARNESSES = {
    "good": 'open("answer.txt", "w").write(ask()[1])',
    "silent": "",
    "fails-before-it-asks": "sys.exit(3)",
    "fails-after-it-asked": 'open("answer.txt", "w").write(ask()[1]); sys.exit(3)',
    "hangs-before-it-asks": "time.sleep(600)",
    "hangs-after-it-asked": 'open("answer.txt", "w").write(ask()[1]); time.sleep(600)',
    # More calls at a time than one execution may have, 1,000 in all.
    "floods-with-calls": """
statuses = []
def caller(n):
    for i in range(10):
        statuses.append(ask(f"flood {n} {i}")[0])
threads = [threading.Thread(target=caller, args=(n,)) for n in range(100)]
[t.start() for t in threads]
[t.join() for t in threads]
json.dump({str(s): statuses.count(s) for s in set(statuses)}, open("statuses.json", "w"))
open("answer.txt", "w").write(ask()[1])
""",
    "floods-with-bytes": """
huge = json.dumps({"messages": [{"role": "user", "content": "x" * (40 << 20)}]}).encode()
long = json.dumps({"messages": [{"role": "user", "content": "word " * 200_000}]}).encode()
statuses = [ask(body=huge)[0], ask(body=long)[0], ask(body=b"[" * 100_000)[0], ask(body=b"no JSON")[0]]
json.dump(statuses, open("statuses.json", "w"))
open("answer.txt", "w").write(ask()[1])
""",
    "floods-its-output": """
block = b"y" * (1 << 20)
for _ in range(10):
    sys.stdout.buffer.write(block)
open("answer.txt", "w").write(ask()[1])
""",
    "uses-what-is-not-its": """
base = os.environ["TIDEMILL_BASE_URL"]
mine = base.rpartition("/")[2]
others = [base.replace(mine, name) for name in ("g1-0", "g2-0", "nobody")]
statuses = [ask(key="wrong")[0], *(ask(base=other)[0] for other in others if other != base)]
json.dump(statuses, open("statuses.json", "w"))
open("answer.txt", "w").write(ask()[1])
""",
}

SCORE = 'mkdir -p /logs/verifier; [ "$(cat answer.txt)" = hello ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'

EVALUATORS = {
    "evaluator-crashes": "exit 1\n",
    "evaluator-hangs": "sleep 600\n",
    "evaluator-says-nan": "mkdir -p /logs/verifier; echo nan > /logs/verifier/reward.txt\n",
    "evaluator-is-repaired": "sleep 0.5; [ -e /tests/repaired ] || exit 1\n" + SCORE,
}

LIMITS = {"hangs-before-it-asks": 2.0, "hangs-after-it-asked": 8.0}  # seconds

TASKS = (*HARNESSES, *EVALUATORS)
DONE = tuple(name for name in HARNESSES if name != "silent" and not name.endswith("before-it-asks"))  # they leave an answer behind
N = 2

pytestmark = pytest.mark.timeout(180)


@dataclass
class Told:
    """What the stores say once the job has ended."""

    folder: Path
    tide: Tide
    gateway: GatewayState
    rows: dict[str, list[dict[str, object]]]  # of executions, by task

    @property
    def events(self) -> list[AnyEvent]:
        return list(read_events(self.folder / "metrics.jsonl"))

    def statuses(self, task: str) -> list[object]:
        """What the harnesses of this task were answered."""
        return [json.loads((self.folder / "executions" / str(row["id"]) / "1" / "work" / "statuses.json").read_text()) for row in self.rows[task]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return asyncio.run(_lived(tmp_path_factory.mktemp("harnesses")))


async def _lived(folder: Path) -> Told:
    tasks = folder / "tasks"
    for name in TASKS:
        harness, tests = ASK + HARNESSES.get(name, HARNESSES["good"]), EVALUATORS.get(name, SCORE)
        stand_ins.task(tasks / name, harness, tests, seconds=LIMITS.get(name, 60.0), evaluator_seconds=2.0)
    file = stand_ins.manifest(folder, tasks, {"schedule": {"groupsPerStep": len(TASKS), "rolloutsPerGroup": N}})
    async with stand_ins.running(file, folder / "job", lambda prompt: "hello") as job:
        job.engine.seconds = lambda prompt: 0.5 if "flood" in prompt else 0.0  # else a slow harness never has many calls in flight
        repairing = asyncio.create_task(_repair(job, tasks / "evaluator-is-repaired"))
        tide = await job.until("the job ends", lambda tide: tide.phase in stand_ins.ENDED, 120)
        await repairing
        state = await job.gateway.state()
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in TASKS}
    for row in query(
        folder / "job" / "conductor.db", "SELECT e.*, g.task, g.state AS group_state FROM executions e JOIN groups g ON g.id = e.group_id"
    ):
        rows[row["task"]].append(dict(row))
    return Told(folder / "job", tide, state, rows)


async def _repair(job: stand_ins.Job, task: Path) -> None:
    """Once its first evaluation has crashed, the second finds it in order."""
    while not any("evaluator-is-repaired" in line["reason"] for line in job.told("conductor", "evaluator crashed")):
        await asyncio.sleep(0.02)
    (task / "tests" / "repaired").touch()


def test_the_job_succeeds_and_counts_every_execution(told: Told) -> None:
    assert told.tide.phase is JobPhase.SUCCEEDED
    assert told.tide.started == told.tide.terminated == told.tide.dispatched == N * len(TASKS)
    ended = [event for event in told.events if isinstance(event, ExecutionEnded)]
    assert len(ended) == len({event.execution for event in ended}) == N * len(TASKS)
    assert [event.phase for event in told.events if isinstance(event, JobEnded)] == ["Succeeded"]


@pytest.mark.parametrize("task", DONE)
def test_work_that_was_done_is_scored_however_the_harness_ended(told: Told, task: str) -> None:
    assert [(row["state"], row["score"], row["attempt"]) for row in told.rows[task]] == [("Scored", 1.0, 1)] * N


def test_a_harness_that_never_asks_and_ends_well_is_scored(told: Told) -> None:
    assert [(row["state"], row["score"], row["turns"]) for row in told.rows["silent"]] == [("Scored", 0.0, 0)] * N


@pytest.mark.parametrize(("task", "how"), [("fails-before-it-asks", "it ended with code 3"), ("hangs-before-it-asks", "it ran into its time-out")])
def test_a_harness_that_fails_before_it_asks_is_tried_three_times_then_dropped(told: Told, task: str, how: str) -> None:
    for row in told.rows[task]:
        assert (row["state"], row["attempt"], row["score"]) == ("Dropped", 3, None)
        assert str(row["reason"]).startswith(f"harness never called the model: {how}")


@pytest.mark.parametrize("task", ["evaluator-crashes", "evaluator-hangs", "evaluator-says-nan"])
def test_an_evaluator_that_does_not_work_is_no_zero_but_a_counted_drop(told: Told, task: str) -> None:
    for row in told.rows[task]:
        assert (row["state"], row["score"], row["group_state"]) == ("Dropped", None, "Dropped")
        assert str(row["reason"]).startswith("evaluator failed: ")
    groups = [event.group for event in told.events if isinstance(event, GroupDropped) and event.task == task]
    assert groups == [told.rows[task][0]["group_id"]]
    ended = [event for event in told.events if isinstance(event, ExecutionEnded) and event.task == task]
    assert [(event.dropped, event.score) for event in ended] == [("evaluator failed", None)] * N


def test_an_evaluator_that_crashed_is_tried_again(told: Told) -> None:
    assert [(row["state"], row["score"]) for row in told.rows["evaluator-is-repaired"]] == [("Scored", 1.0)] * N


def test_a_flood_of_calls_is_held_back_and_nobody_else_is(told: Told) -> None:
    for answered in told.statuses("floods-with-calls"):
        assert isinstance(answered, dict)
        assert set(answered) <= {"200", "503"}
        assert sum(answered.values()) == 1000
        assert answered["200"] > 32
        assert answered["503"] > 0


def test_bodies_that_are_huge_or_broken_get_an_answer_of_their_own(told: Told) -> None:
    assert told.statuses("floods-with-bytes") == [[413, 400, 400, 400]] * N


def test_a_harness_reaches_no_other_execution(told: Told) -> None:
    for statuses in told.statuses("uses-what-is-not-its"):
        assert isinstance(statuses, list)
        assert set(statuses) <= {401, 404}


def test_the_step_is_closed_with_the_groups_that_were_scored(told: Told) -> None:
    dropped = {"fails-before-it-asks", "hangs-before-it-asks", "evaluator-crashes", "evaluator-hangs", "evaluator-says-nan"}
    [step] = [event for event in told.events if isinstance(event, StepCommitted)]
    assert step.groups == len(TASKS) - len(dropped)
    assert {event.task for event in told.events if isinstance(event, GroupDropped)} == dropped


def test_every_trajectory_is_complete(told: Told) -> None:
    for task, rows in told.rows.items():
        for row in rows:
            if row["state"] == "Scored":
                trajectory = read_trajectory(told.folder / "trajectories" / f"{row['id']}.msgpack")
                assert (trajectory.task, len(trajectory.turns)) == (task, row["turns"])

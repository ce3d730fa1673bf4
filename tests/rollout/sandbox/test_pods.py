"""Executions as pods: the whole way of a task from the conductor into a jail that shows what the pod's manifest says, and of its work back."""

import asyncio
import io
import tarfile
from pathlib import Path

import pytest

from tests.rollout.gateway.world import until
from tests.rollout.jobs import job, task
from tests.rollout.sandbox.podworld import OwnPods, PodWorld, pod_world
from tidemill.api.rljob import RLJob
from tidemill_rollout.conductor import deliveries
from tidemill_rollout.conductor.sandboxes import EvaluatorCrashed, SandboxBroken
from tidemill_rollout.harness.presets import INSTRUCTION
from tidemill_rollout.sandbox import archive, enter, orders, tree
from tidemill_rollout.sandbox.execution import HarnessEnd
from tidemill_rollout.tasks.source import Task, load_task

TINY = Path(__file__).parents[3] / "examples" / "tiny" / "tasks"
SOLVE = "cp question.txt answer.txt"


def script(text: str) -> RLJob:
    return job("generic", command=["bash", "-c", text])


async def run(world: PodWorld[OwnPods], work: Task, seconds: float = 60.0) -> HarnessEnd:
    return await world.sandboxes.run("e-1", 1, work.name, await world.open(), seconds)


async def score(world: PodWorld[OwnPods], work: Task) -> float:
    return (await world.sandboxes.evaluate("e-1", 1, work.name)).score


def brought(world: PodWorld[OwnPods]) -> set[str]:
    with tarfile.open(world.path("work.tar")) as archive:
        return set(archive.getnames())


async def test_a_real_task_is_brought_worked_on_with_the_model_and_scored(tmp_path: Path) -> None:
    work = load_task(TINY / "write-elm")
    async with pod_world(tmp_path, job("generic", command=["python3", "writer.py"]), work, say=lambda prompt: "AN ELM") as world:
        end = await run(world, work)
        closed = await world.gateway.close("e-1", 1)
        assert (end.exit_code, end.timed_out, end.stopped, end.log_tail) == (0, False, "", "")
        assert closed.turns == len(world.turns) >= 1
        share = pytest.approx(closed.turns / (7 * closed.turns - 1), abs=1e-5)  # of "AN ELM" the space is good; lines are joined by new lines
        assert await score(world, work) == share
        assert world.pods.now == {}
        assert [pod["metadata"]["labels"]["tidemill.dev/component"] for pod in world.pods.made] == ["sandbox", "evaluator"]
        assert await score(world, work) == share
        assert len(world.pods.made) == 2, "a score is kept"
        evaluation = await world.sandboxes.evaluate("e-1", 1, work.name)
        assert (evaluation.valid, evaluation.digest) == (True, tree.digest_of_file(world.path("work.tar")))


async def test_react_travels_along(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, job("react"), work, say=lambda prompt: "ANSWER: 42") as world:
        end = await run(world, work)
        assert (end.exit_code, end.log_tail.splitlines()[-1]) == (0, "answer: '42'")
        assert await score(world, work) == 1.0
        assert brought(world) >= {"app/answer.txt", "app/question.txt", "logs/agent", "report.json"}
        assert "app/Dockerfile" not in brought(world)


async def test_the_harness_sees_its_task_and_neither_tests_nor_keys_nor_ways_to_change_what_runs_it(tmp_path: Path) -> None:
    look = (
        f"cat {INSTRUCTION}; ls / /app; cat /proc/1/environ; ls /tests; touch /run/tidemill/enter.py; echo x > {INSTRUCTION}; touch /x; "
        "env | grep -c TIDEMILL_SANDBOX; id -u; echo $HOME $PWD"
    )
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script(look), work) as world:
        end = await run(world, work)
        tail = end.log_tail
    assert "Copy question.txt to answer.txt." in tail
    assert "/proc/1/environ: Permission denied" in tail
    assert "cannot access '/tests'" in tail
    assert tail.count("Read-only file system") == 3
    assert tail.endswith("0\n1000\n/tmp/home /app\n")


async def test_a_harness_out_of_time_is_ended_with_all_it_started_and_its_work_scored(tmp_path: Path) -> None:
    leave = f"{SOLVE}; (setsid sh -c 'while :; do date > /app/alive; sleep 0.02; done' >/dev/null 2>&1 &); sleep 1000"
    work = task(tmp_path / "task", toml="[agent]\ntimeout_sec = 1.5")
    async with pod_world(tmp_path, script(leave), work) as world:
        end = await run(world, work)
        assert end.timed_out
        assert end.seconds < 10
        assert await score(world, work) == 1.0
        assert "app/alive" in brought(world)


async def test_the_deadline_holds_too(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script("sleep 1000"), work) as world:
        assert (await run(world, work, seconds=2.0)).timed_out


async def test_a_harness_that_cannot_be_started_is_told_from_surroundings_that_fail(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, job("generic", command=["no-such-agent"]), work) as world:
        end = await run(world, work)
    assert (end.exit_code, end.log_tail) == (127, "sandbox: cannot start no-such-agent: No such file or directory\n")


@pytest.mark.parametrize(
    ("command", "limits", "stopped"),
    [
        ("dd if=/dev/zero of=/app/big bs=1M count=3 2>/dev/null; sleep 30", {"disk_bytes": 2**21}, "disk: wrote more than 2097152 bytes"),
        ('python3 -c "import time; x = bytearray(80_000_000); time.sleep(30)"', {"memory_bytes": 50_000_000}, "memory: "),
        ("for n in $(seq 30); do sleep 30 & done; wait", {"processes": 20}, "processes: more than 20"),
    ],
)
async def test_a_limit_stops_a_harness_and_its_work_is_kept(tmp_path: Path, command: str, limits: dict[str, int], stopped: str) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script(f"{SOLVE}; {command}"), work) as world:
        world.limit(**limits)
        end = await run(world, work)
        assert end.stopped.startswith(stopped)
        world.limit()
        assert await score(world, work) == 1.0


async def test_work_that_is_too_large_is_refused_with_a_reason_and_the_rest_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "WORK_BYTES", 2**20)
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script(f"{SOLVE}; dd if=/dev/zero of=big bs=1M count=3; echo done"), work) as world:
        end = await run(world, work)
        assert (end.exit_code, end.stopped) == (0, "the work is larger than 1048576 bytes, it is not kept")
        assert end.log_tail.endswith("done\n")
        evaluation = await world.sandboxes.evaluate("e-1", 1, work.name)
        assert (evaluation.score, evaluation.valid, evaluation.digest) == (0.0, False, ""), "what the task began with is scored, and not trained"


async def test_the_evaluator_works_on_a_copy_with_tests_that_it_cannot_change_and_without_a_model(tmp_path: Path) -> None:
    tests = (
        "cat /logs/agent/note; cat /logs/verifier/reward.json; echo changed > answer.txt; touch /tests/x; env | grep TIDEMILL; cat /proc/1/environ\n"
        "echo 0.5 > /logs/verifier/reward.txt\n"
    )
    forge = "mkdir -p /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json; echo seen > /logs/agent/note; ln -s /etc/passwd link"
    work = task(tmp_path / "task", tests)
    async with pod_world(tmp_path, script(f"{SOLVE}; {forge}"), work) as world:
        await run(world, work)
        assert await score(world, work) == 0.5
        output = world.path("evaluation/output.log").read_text()
        door = world.pods.made[1]["spec"]["containers"][0]["env"]
        assert world.path("work.tar").exists()
    assert output.startswith("seen\ncat: /logs/verifier/reward.json: No such file")
    assert "touch: cannot touch '/tests/x': Read-only file system" in output
    assert "/proc/1/environ: Permission denied" in output
    assert "TIDEMILL" not in output
    assert {variable["name"] for variable in door} == {"TIDEMILL_SANDBOX_URL", "TIDEMILL_SANDBOX_KEY"}


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        ("echo broken; exit 3", r"exit code 3: the tests wrote neither .* ends with 'broken\\n'"),
        ("echo nan > /logs/verifier/reward.txt", "must be finite"),
        ("ln -s /etc/passwd /logs/verifier/reward.json", "reward.json is not a file"),
        ("sleep 1000", "not done within 1 s"),
    ],
)
async def test_an_evaluator_that_fails_is_not_a_zero_and_can_be_tried_again(tmp_path: Path, tests: str, complaint: str) -> None:
    work = task(tmp_path / "task", tests, f"[verifier]\ntimeout_sec = {1 if 'sleep' in tests else 60}")
    async with pod_world(tmp_path, script(SOLVE), work) as world:
        await run(world, work)
        for _ in range(2):
            with pytest.raises(EvaluatorCrashed, match=complaint):
                await score(world, work)
        assert world.pods.now == {}


async def test_what_comes_while_conductor_or_gateway_are_away_comes_later(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script(f"touch /logs/agent/started; {SOLVE}"), work) as world:
        world.away = True
        running = asyncio.create_task(run(world, work))
        await until(lambda: world.refused > 1)
        assert world.pods.made
        world.away = False
        name = world.pods.made[0]["metadata"]["name"]
        await until(lambda: (world.pods.folders[name] / "logs" / "agent" / "started").exists())
        world.away = True
        seen = world.refused
        await until(lambda: world.refused > seen)
        assert not running.done()
        world.away = False
        assert (await running).exit_code == 0
        assert await score(world, work) == 1.0


async def test_a_key_opens_the_way_of_its_own_files_and_nothing_else(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script("sleep 1000"), work) as world:
        running = asyncio.create_task(run(world, work))
        await until(lambda: len(world.pods.made) == 1)
        await world.open("e-2")

        async def ask(method: str, path: str, key: str) -> int:
            async with world.session.request(method, world.now.url + path, headers={"Authorization": f"Bearer {key}"}, data=b"x") as answer:
                return answer.status

        assert await ask("GET", "/x/e-1/sandbox/task", "key-of-e-1-1") == 200
        assert await ask("GET", "/x/e-1/sandbox/task", "key-of-e-2-1") == 401
        assert await ask("GET", "/x/e-2/sandbox/task", "key-of-e-2-1") == 410, "it has no sandbox"
        assert await ask("PUT", "/x/e-1/sandbox/work", "key-of-e-1-1") == 400
        for path in ("sandbox/work", "sandbox/../../../v1/tide", "sandbox/task/..%2f..%2ftide", "sandbox", "v1/sandbox/task", "sandbox//task"):
            assert await ask("GET", f"/x/e-1/{path}", "key-of-e-1-1") in (401, 404), path
        await world.gateway.close("e-1", 1)
        assert await ask("GET", "/x/e-1/sandbox/task", "key-of-e-1-1") == 404
        running.cancel()
        await asyncio.wait({running})
        assert world.pods.now == {}, "a life that is cancelled takes its pod along"


async def test_an_archive_beyond_its_bound_is_refused_while_it_comes_and_a_second_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "WORK_BYTES", 2**20)
    monkeypatch.setattr(deliveries, "ROOM_BYTES", 0)
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script(f"while ! [ -e go ]; do sleep 0.05; done; {SOLVE}"), work) as world:
        running = asyncio.create_task(run(world, work))
        await until(lambda: len(world.pods.made) == 1)

        async def put(content: bytes) -> tuple[int, str]:
            async with world.session.put(
                f"{world.now.url}/x/e-1/sandbox/work", headers={"Authorization": "Bearer key-of-e-1-1"}, data=content
            ) as answer:
                return answer.status, await answer.text()

        status, text = await put(bytes(20 * 2**20))
        assert (status, "larger than 1048576 bytes" in text) == (413, True)
        assert (await put(b"no archive"))[0] == 400
        assert not [path for path in world.path("").iterdir() if path.name.startswith(".brought")], "nothing of it stays"
        whole = io.BytesIO()
        enter.pack(whole, enter.Report(exit_code=3, timed_out=False, seconds=1.0, stopped="", refused="", tail=""), b"", {}, 2**20)
        assert (await put(whole.getvalue()))[0] == 200, "a harness that reports on itself ends itself"
        assert (await running).exit_code == 3
        assert (await put(whole.getvalue()))[0] == 410


async def test_the_evaluators_key_does_not_lead_to_the_model(tmp_path: Path) -> None:
    work = task(tmp_path / "task", "sleep 1000")
    async with pod_world(tmp_path, script(SOLVE), work) as world:
        await run(world, work)
        judging = asyncio.create_task(score(world, work))
        await until(lambda: len(world.pods.made) == 2)
        url, key = (variable["value"] for variable in world.pods.made[1]["spec"]["containers"][0]["env"])
        body = {"messages": [{"role": "user", "content": "hello"}]}
        async with world.session.post(f"{url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}) as answer:
            assert answer.status == 403
        judging.cancel()
        await asyncio.wait({judging})


async def test_an_attempt_that_is_over_brings_nothing(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script(SOLVE), work) as world:
        await world.open()
        await world.gateway.open(opened := world.opened("e-1", 2))
        with pytest.raises(SandboxBroken, match=r"container prepare ended with 75.*401"):
            await world.sandboxes.run("e-1", 1, work.name, "key-of-e-1-1", 30.0)
        assert (await world.sandboxes.run("e-1", 2, work.name, opened.key, 30.0)).exit_code == 0


async def test_stopping_ends_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script("sleep 1000"), work) as world:
        running = asyncio.create_task(run(world, work))
        await until(lambda: len(world.pods.made) == 1)
        await world.sandboxes.stop_all()
        assert (await running).stopped == "stopped"
        assert world.pods.now == {}
        assert (await run(world, work)).stopped == "stopped"
        assert len(world.pods.made) == 1


async def test_a_pod_that_is_deleted_from_outside_breaks_the_attempt(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script("sleep 1000"), work) as world:
        running = asyncio.create_task(run(world, work))
        await until(lambda: any(pod.get("status", {}).get("phase") == "Running" for pod in world.pods.now.values()))
        await world.pods.delete(next(iter(world.pods.now)))
        with pytest.raises(SandboxBroken, match="somebody else deleted it"):
            await running


async def test_what_the_image_has_in_the_work_folder_is_there_and_the_task_goes_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, volume = tmp_path / "image", tmp_path / "volume"
    (image / "src").mkdir(parents=True)
    (image / "src" / "main.c").write_text("image")
    (image / "question.txt").write_text("image")
    (image / "link").symlink_to("src")
    volume.mkdir()
    (volume / "question.txt").write_text("task")
    monkeypatch.setitem(enter.PLACES, "app", str(image))
    monkeypatch.setattr(enter, "SEED", str(volume))
    enter.seed()
    assert {path.name for path in volume.iterdir()} == {"src", "question.txt", "link"}
    assert (volume / "src" / "main.c").read_text() == "image"
    assert (volume / "question.txt").read_text() == "task"
    monkeypatch.setitem(enter.PLACES, "app", str(tmp_path / "nowhere"))
    enter.seed()


async def test_work_that_is_not_taken_is_the_harnesss_doing_and_scored_as_if_it_had_done_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = task(tmp_path / "task")
    async with pod_world(tmp_path, script(f"{SOLVE}; touch $(seq 30)"), work) as world:
        with monkeypatch.context() as patched:
            patched.setattr(archive, "MOST_MEMBERS", 20)
            end = await run(world, work)
        assert "more than 20 files and folders" in end.stopped
        assert not world.path("work.tar").exists()
        assert await score(world, work) == 0.0


async def test_a_harness_that_removes_its_logs_is_scored(tmp_path: Path) -> None:
    work = task(tmp_path / "task", "ls /logs/agent /logs/artifacts && cp answer.txt /logs/verifier/reward.txt")
    async with pod_world(tmp_path, script("rm -r /logs/agent /logs/artifacts; ln -s / /logs/agent; echo 0.5 > answer.txt"), work) as world:
        await run(world, work)
        assert await score(world, work) == 0.5
        assert "etc" not in world.path("evaluation/output.log").read_text()

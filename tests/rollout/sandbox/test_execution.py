"""Executions on this machine: real harnesses in real jails, then real evaluators."""

import asyncio
from pathlib import Path

import pytest

from tests.rollout.jobs import job, task
from tidemill_rollout.sandbox import bubblewrap, tree
from tidemill_rollout.sandbox.execution import KEEP_BYTES, EvaluatorFailed, HarnessEnd, LocalExecutions
from tidemill_rollout.sandbox.tree import TreeError
from tidemill_rollout.tasks.source import Task

SOLVE = "cp question.txt answer.txt"


class Desk:
    """A generic harness that is one shell script."""

    def __init__(self, folder: Path, script: str, unsafe: bool = False) -> None:
        self.folder = folder
        self.executions = LocalExecutions(job("generic", command=["bash", "-c", script]), folder, folder / "gateway.sock", unsafe)
        self.executions.check()

    def path(self, name: str, attempt: int = 1) -> Path:
        return self.folder / "executions" / "e-1" / str(attempt) / name

    async def run(self, work: Task, attempt: int = 1, seconds: float = 30.0) -> HarnessEnd:
        return await self.executions.run("e-1", attempt, work, "key", seconds)

    async def score(self, work: Task) -> float:
        return (await self.executions.evaluate("e-1", 1, work)).score


async def test_a_task_is_laid_out_worked_on_and_scored(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, f"ls; {SOLVE}"), task(tmp_path / "task")
    end = await desk.run(work)
    assert (end.exit_code, end.timed_out, end.log_tail) == (0, False, "question.txt\n")
    evaluation = await desk.executions.evaluate("e-1", 1, work)
    assert evaluation.score == 1.0
    assert evaluation.reason == "tests ended with exit code 0"
    assert evaluation.valid
    assert evaluation.digest == tree.digest(desk.path("work"), KEEP_BYTES) != ""  # what the tests saw before they began is what is kept
    assert desk.path("harness.log").read_text() == "question.txt\n"
    assert desk.path("work/answer.txt").exists()
    assert not desk.path("evaluation/work").exists()


async def test_a_wrong_or_missing_answer_is_a_zero(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    wrong = Desk(tmp_path, "echo 41 > answer.txt")
    await wrong.run(work)
    assert await wrong.score(work) == 0.0
    idle = Desk(tmp_path, "exit 1")
    assert (await idle.run(work)).exit_code == 1
    assert await idle.score(work) == 0.0


async def test_a_harness_out_of_time_is_ended_and_its_work_scored(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, f"{SOLVE}; sleep 1000"), task(tmp_path / "task", toml="[agent]\ntimeout_sec = 3")
    assert (await desk.run(work)).timed_out
    assert await desk.score(work) == 1.0
    hurried = Desk(tmp_path, "sleep 1000")
    assert (await hurried.run(task(tmp_path / "other"), seconds=0.3)).timed_out


async def test_neither_tests_nor_solution_nor_other_executions_are_visible_to_a_harness(tmp_path: Path) -> None:
    work = task(tmp_path / "task")
    desk = Desk(tmp_path, f"ls /tests /solution {work.folder} {tmp_path} /app/..; grep -rsl test.sh /app /logs /run /tmp /etc; true")
    end = await desk.run(work)
    assert "test.sh" not in end.log_tail
    assert "solve.sh" not in end.log_tail
    assert "executions" not in end.log_tail
    assert end.log_tail.count("No such file") >= 3


async def test_the_evaluator_works_on_a_copy_without_a_way_out(tmp_path: Path) -> None:
    tests = (
        "cat /tests/test.sh >/dev/null && rm -f question.txt && echo changed > answer.txt && touch /tests/x || echo read-only\n"
        "python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8080))\" && echo REACHED\n"
        "echo 0.5 > /logs/verifier/reward.txt\n"
    )
    desk, work = Desk(tmp_path, SOLVE), task(tmp_path / "task", tests)
    await desk.run(work)
    assert await desk.score(work) == 0.5
    assert desk.path("work/answer.txt").read_text() == "42\n"
    assert desk.path("work/question.txt").exists()
    output = desk.path("evaluation/output.log").read_text()
    assert "read-only" in output
    assert "REACHED" not in output


async def test_a_reward_that_the_harness_wrote_counts_for_nothing(tmp_path: Path) -> None:
    forge = "mkdir -p /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json; echo seen > /logs/agent/note"
    desk, work = Desk(tmp_path, forge), task(tmp_path / "task", "cat /logs/agent/note; echo 0 > /logs/verifier/reward.txt")
    await desk.run(work)
    assert await desk.score(work) == 0.0
    assert desk.path("evaluation/output.log").read_text() == "seen\n"


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        ("echo broken; exit 3", r"exit code 3: the tests wrote neither .* ends with 'broken\\n'"),
        ("kill -9 $$", "exit code 137"),
        ("echo nan > /logs/verifier/reward.txt", "must be finite"),
        ("ln -s /etc/passwd /logs/verifier/reward.json", "reward.json"),
        ("sleep 1000", "not done within 1 s"),
    ],
)
async def test_an_evaluator_that_fails_is_not_a_zero(tmp_path: Path, tests: str, complaint: str) -> None:
    seconds = 1 if "sleep" in tests else 60
    desk, work = Desk(tmp_path, SOLVE), task(tmp_path / "task", tests, f"[verifier]\ntimeout_sec = {seconds}")
    await desk.run(work)
    with pytest.raises(EvaluatorFailed, match=complaint):
        await desk.score(work)


async def test_an_evaluation_can_be_tried_again(tmp_path: Path) -> None:
    work = task(tmp_path / "task", "exit 1")
    desk = Desk(tmp_path, SOLVE)
    await desk.run(work)
    for _ in range(2):
        with pytest.raises(EvaluatorFailed):
            await desk.score(work)
    (work.tests / "test.sh").write_text("cat answer.txt >/dev/null && echo 1 > /logs/verifier/reward.txt")
    assert await desk.score(work) == 1.0


async def test_a_score_is_given_again_without_running_the_tests_again(tmp_path: Path) -> None:
    work = task(tmp_path / "task", "echo 0.5 > /logs/verifier/reward.txt")
    desk = Desk(tmp_path, SOLVE)
    await desk.run(work)
    first = await desk.executions.evaluate("e-1", 1, work)
    (work.tests / "test.sh").write_text("exit 1")
    assert await desk.executions.evaluate("e-1", 1, work) == first
    await desk.run(work)
    with pytest.raises(EvaluatorFailed):
        await desk.score(work)


async def test_tests_that_fail_but_write_a_reward_have_scored(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, SOLVE), task(tmp_path / "task", "echo 0.25 > /logs/verifier/reward.txt; exit 1")
    await desk.run(work)
    assert await desk.score(work) == 0.25


async def test_the_tests_see_their_own_variables_and_the_harness_does_not(tmp_path: Path) -> None:
    toml = '[environment.env]\nCOLOR = "blue"\n[verifier.env]\nSECRET = "sesame"'
    work = task(tmp_path / "task", "echo $COLOR $SECRET; env | grep -c KEY; echo 1 > /logs/verifier/reward.txt", toml)
    desk = Desk(tmp_path, "echo $COLOR $SECRET")
    assert (await desk.run(work)).log_tail == "blue\n"
    await desk.score(work)
    assert desk.path("evaluation/output.log").read_text() == "blue sesame\n0\n"


async def test_a_second_attempt_starts_from_the_tasks_files(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, "ls; touch leftover"), task(tmp_path / "task")
    for attempt in (1, 1, 2):
        assert (await desk.run(work, attempt)).log_tail == "question.txt\n"


async def test_what_is_large_goes_when_an_execution_is_scored_and_its_log_stays(tmp_path: Path) -> None:
    script = f"{SOLVE}; head -c {2 * KEEP_BYTES} /dev/zero > large; head -c {2 * KEEP_BYTES} /dev/zero > /logs/agent/large; echo said"
    desk, work = Desk(tmp_path, script), task(tmp_path / "task")
    await desk.run(work)
    assert await desk.score(work) == 1.0
    assert sorted(path.name for path in desk.path("").iterdir()) == ["evaluation", "evaluation.json", "harness.log", "instruction.md"]
    assert desk.path("harness.log").read_text() == "said\n"


async def test_stop_all_ends_a_harness_and_starts_no_other(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, "touch up; sleep 1000"), task(tmp_path / "task")
    running = asyncio.create_task(desk.run(work))
    await seen(desk.path("work/up"))
    await desk.executions.stop_all()
    assert (await running).stopped == "stopped"
    assert (await desk.run(work, 2)).stopped == "stopped"


async def test_stop_all_ends_an_evaluator(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, "true"), task(tmp_path / "task", "touch up; sleep 1000")
    await desk.run(work)
    scoring = asyncio.create_task(desk.score(work))
    await seen(desk.path("evaluation/work/up"))
    await desk.executions.stop_all()
    with pytest.raises(EvaluatorFailed, match="stopped"):
        await scoring


async def seen(path: Path) -> None:
    async with asyncio.timeout(10):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_an_execution_is_not_a_path(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, "true"), task(tmp_path / "task")
    with pytest.raises(ValueError, match="not a name for a folder"):
        await desk.executions.run("../e", 1, work, "key", 1)


async def test_without_a_jail_a_task_is_still_worked_on_and_scored(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, "cp /app/question.txt /app/answer.txt", unsafe=True), task(tmp_path / "task")
    assert (await desk.run(work)).exit_code == 0
    assert await desk.score(work) == 1.0


READS_ALL = "ls -laR /logs/agent /logs/artifacts; cat /logs/agent/secret /logs/artifacts/secret; echo 0.5 > /logs/verifier/reward.txt"


@pytest.mark.parametrize("makers", ["bubblewrap", "own namespaces"])
async def test_a_harness_that_makes_its_logs_a_link_shows_the_tests_nothing_of_this_machine(
    tmp_path: Path, makers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if makers == "own namespaces":
        monkeypatch.setattr(bubblewrap, "programs", lambda: ())
    host = tmp_path / "host"
    host.mkdir()
    (host / "secret").write_text("of the machine")
    script = f"rm -r /logs/agent /logs/artifacts; ln -s {host} /logs/agent; ln -s / /logs/artifacts; {SOLVE}"
    desk, work = Desk(tmp_path, script), task(tmp_path / "task", READS_ALL)
    await desk.run(work)
    assert await desk.score(work) == 0.5
    output = desk.path("evaluation/output.log").read_text()
    assert "of the machine" not in output
    assert "etc" not in output


@pytest.mark.parametrize(
    "script",
    [
        "rm -r /logs/agent /logs/artifacts",
        "rm -r /logs/agent; touch /logs/agent; chmod 0 /logs /app",
        "rm -r /logs/agent; mkfifo /logs/agent; mkdir closed; chmod 0 closed",
    ],
)
async def test_whatever_a_harness_does_to_its_logs_its_work_is_scored(tmp_path: Path, script: str) -> None:
    desk, work = Desk(tmp_path, f"{SOLVE}; {script}"), task(tmp_path / "task")
    assert (await desk.run(work)).exit_code == 0
    assert await desk.score(work) == 1.0


async def test_work_that_cannot_be_copied_is_worth_nothing_and_no_failure_of_the_evaluator(tmp_path: Path) -> None:
    deep = "import os\nfor _ in range(3000):\n  os.mkdir('d'); os.chdir('d')\n"
    desk, work = Desk(tmp_path, f'{SOLVE}; python3 -c "{deep}"'), task(tmp_path / "task")
    await desk.run(work)
    evaluation = await desk.executions.evaluate("e-1", 1, work)
    assert evaluation.score == 0.0
    assert not evaluation.valid
    assert "cannot be evaluated: cp" in evaluation.reason
    assert await desk.executions.evaluate("e-1", 1, work) == evaluation
    await tree.remove(tmp_path / "executions")  # pytest's own way of removing it does not get so deep


async def test_a_machine_that_cannot_copy_the_work_gives_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, work = Desk(tmp_path, SOLVE), task(tmp_path / "task")
    await desk.run(work)

    async def full(*_: object, **__: object) -> None:
        raise TreeError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tree, "copy", full)
        with pytest.raises(EvaluatorFailed, match="could not be copied"):
            await desk.score(work)
    assert await desk.score(work) == 1.0


async def test_files_that_cannot_be_removed_harm_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, work = Desk(tmp_path, SOLVE), task(tmp_path / "task")
    await desk.run(work)

    async def busy(*_: object, **__: object) -> None:
        raise TreeError("rm: not done within 300 s")

    monkeypatch.setattr(tree, "remove", busy)
    await desk.executions.discard("e-1", 1)


async def test_without_a_jail_a_harness_that_removes_its_work_gets_nothing_for_it(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, "rm -r $PWD", unsafe=True), task(tmp_path / "task")
    await desk.run(work)
    assert await desk.score(work) == 0.0


async def test_a_tasks_files_behind_a_link_are_copied_and_never_changed(tmp_path: Path) -> None:
    work, shared = task(tmp_path / "task", "ls; echo 1 > /logs/verifier/reward.txt"), tmp_path / "shared"
    for name in ("environment", "tests"):
        (work.folder / name).rename(tmp_path / f"shared-{name}")
        (work.folder / name).symlink_to(tmp_path / f"shared-{name}")
    shared = tmp_path / "shared-environment"
    before = sorted(path.name for path in shared.iterdir())
    desk = Desk(tmp_path, "ls; echo spoilt > question.txt; touch left")
    assert (await desk.run(work)).log_tail == "question.txt\n"
    assert not desk.path("work").is_symlink()
    assert sorted(path.name for path in shared.iterdir()) == before == ["Dockerfile", "question.txt"]
    assert (shared / "question.txt").read_text() == "42\n"
    assert await desk.score(work) == 1.0


async def test_a_folder_that_is_called_as_a_build_file_stays(tmp_path: Path) -> None:
    desk, work = Desk(tmp_path, "ls Dockerfile"), task(tmp_path / "task")
    (work.files / "Dockerfile").unlink()
    (work.files / "Dockerfile").mkdir()
    (work.files / "Dockerfile" / "base").touch()
    assert (await desk.run(work)).log_tail == "base\n"


async def test_tests_that_make_their_folder_a_link_do_not_have_this_machine_read(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "reward.txt").write_text("0.25")
    tests = f"rmdir /logs/verifier; ln -s {host} /logs/verifier"
    desk, work = Desk(tmp_path, SOLVE), task(tmp_path / "task", tests)
    await desk.run(work)
    with pytest.raises(EvaluatorFailed, match="verifier is not a folder"):
        await desk.score(work)

"""The quickstart's tasks, scored for real: their own tests, in the product's jail, on what agents leave behind."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tidemill_rollout.harness.react import OPENING
from tidemill_rollout.sandbox.process import Launch, ProcessSandbox
from tidemill_rollout.scoring.evaluator import evaluate
from tidemill_rollout.tasks.source import BUILD_FILES, Task, load_tasks

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
SETS = ("tasks", "heldout")
AT_ONCE = 4


@dataclass(frozen=True)
class Bench:
    """Where works are made and scored."""

    folder: Path
    sandbox: ProcessSandbox

    async def score(self, task: Task, leave: Callable[[Path], object] | None = None, solve: bool = False) -> float:
        """The score of a fresh work folder after `leave` was there, or after the task's own solution was run in it."""
        room = self.folder / f"{task.folder.parent.name}-{task.name}"
        shutil.rmtree(room, ignore_errors=True)
        shutil.copytree(task.files, room / "work", ignore=shutil.ignore_patterns(*BUILD_FILES))
        for log in ("agent", "artifacts"):
            (room / "logs" / log).mkdir(parents=True)
        if leave:
            leave(room / "work")
        if solve:
            launch = Launch(("bash", "/solution/solve.sh"), {}, files={"/solution": task.folder / "solution"})
            ended = await self.sandbox.run(launch, work=room / "work", logs=room / "logs", output=room / "solve.log", seconds=30)
            assert ended.exit_code == 0, ended.tail
        return (await evaluate(self.sandbox, task, room / "work", room / "logs", room / "evaluation")).score


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    sandbox = ProcessSandbox(tmp_path, tmp_path / "gateway.sock")
    sandbox.check()
    yield Bench(tmp_path, sandbox)
    await sandbox.stop_all()


def tasks_of(name: str) -> tuple[Task, ...]:
    return load_tasks(f"path:{name}", QUICKSTART)


def make_tasks() -> ModuleType:
    specification = importlib.util.spec_from_file_location("make_tasks", QUICKSTART / "make_tasks.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["make_tasks"] = module
    specification.loader.exec_module(module)
    return module


def contents(folder: Path) -> dict[str, tuple[bytes, bool]]:
    """Every file below `folder`: what is in it, and whether it may be executed."""
    return {str(path.relative_to(folder)): (path.read_bytes(), bool(path.stat().st_mode & 0o100)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", SETS)
def test_the_tasks_are_what_the_generator_writes(name: str, tmp_path: Path) -> None:
    generator = make_tasks()
    generator.write(tmp_path / name, {"tasks": generator.trained, "heldout": generator.held_out}[name]())
    assert contents(tmp_path / name) == contents(QUICKSTART / name)


def test_held_out_tasks_share_no_person_no_file_and_no_question_with_the_trained() -> None:
    generator = make_tasks()
    trained, held_out = generator.trained(), generator.held_out()
    for field in ("file", "name", "what", "instruction"):
        assert not {getattr(task, field) for task in trained} & {getattr(task, field) for task in held_out}


def test_no_task_asks_what_the_agents_worked_example_answers() -> None:
    example = OPENING[1]["content"]
    generator = make_tasks()
    for task in (*generator.trained(), *generator.held_out()):
        assert task.file not in example
        assert task.name not in example


@pytest.mark.parametrize("name", SETS)
async def test_every_solution_scores_one_and_no_answer_zero(name: str, bench: Bench) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def scores(task: Task) -> tuple[str, float, float]:
        async with gate:
            return task.name, await bench.score(task), await bench.score(task, solve=True)

    tasks = tasks_of(name)
    async with asyncio.TaskGroup() as group:
        scored = [group.create_task(scores(task)) for task in tasks]
    assert [one.result() for one in scored] == [(task.name, 0.0, 1.0) for task in tasks]


@pytest.mark.parametrize("answer", ["", "\n", "{n}.", "{n}0", "0{n}", "{n} {n}", "{n}\n{n}\n", "The number is {n}.\n", "{person}: {n}\n", "no\n"])
async def test_anything_but_the_bare_number_scores_zero(answer: str, bench: Bench) -> None:
    task = tasks_of("tasks")[0]
    person, number = fact(task)
    assert await bench.score(task, lambda work: (work / "answer.txt").write_text(f"{number}\n")) == 1.0
    assert await bench.score(task, lambda work: (work / "answer.txt").write_text(answer.format(n=number, person=person))) == 0.0


async def test_neither_a_folder_nor_a_link_to_the_expected_answer_is_an_answer(bench: Bench) -> None:
    task = tasks_of("tasks")[0]
    assert await bench.score(task, lambda work: (work / "answer.txt").mkdir()) == 0.0
    assert await bench.score(task, lambda work: (work / "answer.txt").symlink_to("/tests/expected.txt")) == 0.0


def fact(task: Task) -> tuple[str, str]:
    """Who and what the task's one file names."""
    (file,) = (path for path in task.files.iterdir() if path.name not in BUILD_FILES)
    person, number = file.read_text().strip().split(": ")
    return person, number

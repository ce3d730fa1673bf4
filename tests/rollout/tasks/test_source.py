"""Task folders, good and bad."""

import math
from pathlib import Path

import pytest

from tidemill_rollout.tasks.source import TaskError, load_task, load_tasks


def write(folder: Path, toml: str = "", instruction: str | None = "Do it.", tests: bool = True) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    if instruction is not None:
        (folder / "instruction.md").write_text(instruction)
    if tests:
        (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return folder


def test_a_task_of_harbors_own_making_is_read_and_what_is_not_ours_is_let_pass(tmp_path: Path) -> None:
    toml = """
        schema_version = "1.1"
        artifacts = []
        [task]
        name = "org/fix-it"
        keywords = ["a"]
        [metadata]
        difficulty = "easy"
        [agent]
        timeout_sec = 120
        user = "root"
        [verifier]
        timeout_sec = 30.5
        env = {MODE = "strict", LEVEL = "${LEVEL:-3}"}
        [environment]
        docker_image = "ubuntu:24.04"
        cpus = 2
        memory_mb = 4096
        network_mode = "no-network"
        env = {COLOR = "blue"}
    """
    task = load_task(write(tmp_path / "folder", toml))
    assert (task.name, task.instruction, task.agent_seconds, task.verifier_seconds) == ("org/fix-it", "Do it.", 120.0, 30.5)
    assert task.image == "ubuntu:24.04"
    assert task.environment == (("COLOR", "blue"),)
    assert task.verifier_environment == (("MODE", "strict"), ("LEVEL", "3"))


def test_an_empty_task_toml_takes_the_folders_name_and_harbors_time_outs(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "add-two"))
    assert (task.name, task.agent_seconds, task.verifier_seconds) == ("add-two", math.inf, 600.0)


def test_canary_lines_are_not_shown_to_agents(tmp_path: Path) -> None:
    task = load_task(
        write(
            tmp_path / "t", instruction="<!-- harbor-canary GUID x -->\n# Canary y\n\nSolve it.\n# not a canary? no: canary is only cut at the top\n"
        )
    )
    assert task.instruction == "Solve it.\n# not a canary? no: canary is only cut at the top"


@pytest.mark.parametrize(
    ("toml", "complaint"),
    [
        ("[agent\n", "is not TOML"),
        ("agent = 3", r"agent is 3, it must be a table \[agent\]"),
        ("[agent]\ntimeout_sec = 'long'", r"\[agent\] timeout_sec is 'long', it must be a number"),
        ("[verifier]\ntimeout_sec = 0", r"\[verifier\] timeout_sec is 0,"),
        ("[verifier]\ntimeout_sec = nan", r"\[verifier\] timeout_sec is nan,"),
        ("[verifier]\ntimeout_sec = inf", r"\[verifier\] timeout_sec is inf, it must be a number of seconds above 0, at most 1e\+07"),
        ("[agent]\ntimeout_sec = 1e300", r"\[agent\] timeout_sec is 1e\+300,"),
        ("[task]\nname = 7", r"\[task\] name is 7, it must be text"),
        ("[environment]\nos = 'windows'", "only linux is supported"),
        ("[verifier]\nenvironment_mode = 'separate'", "only 'shared' is supported"),
        ("[[steps]]\nname = 'one'", "tasks of several steps are not supported"),
        ("[verifier.env]\nKEY = '${OPENAI_API_KEY}'", "KEY takes \\$\\{OPENAI_API_KEY\\} from your environment"),
        ("[verifier.env]\nKEY = 3", r"\[verifier.env\] must be a table of texts"),
        ('[environment.env]\n"A=B" = "x"', r"\[environment.env\] 'A=B' is no name of a variable"),
        ('[verifier.env]\n"" = "x"', "'' is no name of a variable"),
        ('[environment.env]\nA = "x\\u0000y"', r"\[environment.env\] A has a NUL character"),
        ('[task]\nname = "bad-one\\u0000"', r"task 'bad-one\\x00' .*cannot be shown"),
    ],
)
def test_a_bad_task_toml_is_refused_by_name(tmp_path: Path, toml: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint) as refusal:
        load_task(write(tmp_path / "bad-one", toml))
    assert "bad-one" in str(refusal.value)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"task a .*: instruction.md is missing"):
        load_task(write(tmp_path / "a", instruction=None))
    with pytest.raises(TaskError, match=r"task b .*: instruction.md is empty"):
        load_task(write(tmp_path / "b", instruction=" \n"))
    with pytest.raises(TaskError, match=r"task nul .*: instruction.md has a NUL character"):
        load_task(write(tmp_path / "nul", instruction="Do\0it"))
    with pytest.raises(TaskError, match=r"task c .*: tests/test.sh is missing"):
        load_task(write(tmp_path / "c", tests=False))
    (tmp_path / "d").mkdir()
    with pytest.raises(TaskError, match=r"task d: .*task.toml is missing"):
        load_task(tmp_path / "d")


def test_a_source_is_one_task_or_a_folder_of_tasks(tmp_path: Path) -> None:
    for name in ("one", "two", ".hidden", "__pycache__"):
        write(tmp_path / "tasks" / name)
    (tmp_path / "tasks" / "README.md").write_text("about them")
    assert sorted(task.name for task in load_tasks("path:tasks", tmp_path)) == ["one", "two"]
    assert [task.name for task in load_tasks("path:tasks/one", tmp_path)] == ["one"]
    assert len(load_tasks(f"path:{tmp_path}/tasks", Path("/elsewhere"))) == 2


def test_the_order_depends_on_the_seed_and_a_new_task_leaves_the_others_in_theirs(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / "tasks" / f"t{number}")
    first = [task.name for task in load_tasks("path:tasks", tmp_path, seed=1)]
    assert first == [task.name for task in load_tasks("path:tasks", tmp_path, seed=1)]
    assert first != [task.name for task in load_tasks("path:tasks", tmp_path, seed=2)]
    write(tmp_path / "tasks" / "new")
    assert [task.name for task in load_tasks("path:tasks", tmp_path, seed=1) if task.name != "new"] == first


def test_a_filter_is_part_of_a_name_or_a_pattern(tmp_path: Path) -> None:
    for name in ("sum-1", "sum-2", "max-1"):
        write(tmp_path / "tasks" / name)
    assert {task.name for task in load_tasks("path:tasks", tmp_path, filter="sum")} == {"sum-1", "sum-2"}
    assert {task.name for task in load_tasks("path:tasks", tmp_path, filter="*-1")} == {"sum-1", "max-1"}
    with pytest.raises(TaskError, match=r"none of 3 matches filter 'min'; their names begin with max-1, sum-1"):
        load_tasks("path:tasks", tmp_path, filter="min")


def test_bad_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="unknown kind of source; use path:DIR"):
        load_tasks("harbor:terminal-bench", tmp_path)
    with pytest.raises(TaskError, match="there is no folder"):
        load_tasks("path:nowhere", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="holds no tasks"):
        load_tasks("path:empty", tmp_path)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "tasks" / name, '[task]\nname = "same"')
    with pytest.raises(TaskError, match=r"task same: both .*a and .*b have this name"):
        load_tasks("path:tasks", tmp_path)

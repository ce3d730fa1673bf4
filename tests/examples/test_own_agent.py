"""What docs/harnesses.md tells people to write works as written, on each wire: in the jail, against the real gateway, with a scripted engine."""

import re
from pathlib import Path

import pytest

from tests.faults import stand_ins
from tests.harnesses.script import Script, calls
from tests.rollout.gateway.world import CHATML_WITH_TOOLS, paths, text_of, tokens_of, world
from tidemill.api import load_rljob
from tidemill.api.rljob import HARNESS_PRESETS, Tools
from tidemill.local.cores import gpus_of
from tidemill.local.programs import PROGRAMS
from tidemill.local.sources import source_rules
from tidemill.local.supported import unsupported
from tidemill.trajectory.files import read_trajectory
from tidemill.wire.conductor import JobPhase
from tidemill_rollout.harness.presets import PRESETS
from tidemill_rollout.sandbox.execution import LocalExecutions
from tidemill_rollout.tasks.source import load_tasks

PAGE = (Path(__file__).parents[2] / "docs" / "harnesses.md").read_text()
FILE = re.compile(r"^`(mine/[\w./]+)`[^\n]*:\n\n```\w+\n(.*?)```$", re.MULTILINE | re.DOTALL)
AGENT = re.compile(r"^\*\*([\w ]+)\*\*, `agent.py`:\n\n```python\n(.*?)```$", re.MULTILINE | re.DOTALL)
AGENTS = dict(AGENT.findall(PAGE))
WIRES = {"Chat Completions": "chat", "Responses": "responses", "Messages": "messages"}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    for name, text in FILE.findall(PAGE):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "mine"


def test_the_page_has_all_files_of_a_valid_job_and_an_agent_for_each_wire(mine: Path) -> None:
    files = sorted(str(file.relative_to(mine)) for file in mine.rglob("*") if file.is_file())
    assert files == ["rljob.yaml", "tasks/hello/instruction.md", "tasks/hello/task.toml", "tasks/hello/tests/test.sh"]
    assert unsupported(load_rljob(mine / "rljob.yaml", source_rules(mine)).spec, gpus_of()) == ()
    assert AGENTS.keys() == WIRES.keys()


@pytest.mark.parametrize("name", WIRES)
async def test_an_agent_works_as_written_and_what_it_sampled_is_one_path(name: str, mine: Path, tmp_path: Path) -> None:
    job = load_rljob(mine / "rljob.yaml")
    (mine / "tasks" / "hello" / "environment").mkdir()
    (mine / "tasks" / "hello" / "environment" / "agent.py").write_text(AGENTS[name])
    (task,) = load_tasks(job.spec.tasks.source, mine)
    command = "echo hello > greeting.txt; cat greeting.txt"
    script = Script({"greeting.txt": (calls("So be it.", ("bash", {"command": command}), ("bash", {"command": "wc -l greeting.txt"})), "Done.")})
    async with world(tmp_path / "world", script, tools=Tools.NATIVE, template=CHATML_WITH_TOOLS) as around:
        await around.open("x1", harness="generic")
        executions = LocalExecutions(job, tmp_path / "job", around.folder / "gateway.sock")
        executions.check()
        try:
            end = await executions.run("x1", 1, task, "key-of-x1", 60.0)
            assert end.exit_code == 0, end.log_tail
            assert (await executions.evaluate("x1", 1, task)).score == 1.0
        finally:
            await executions.stop_all()
        await around.close("x1")
        first, last = around.turns
        assert (first.wire, last.parent) == (WIRES[name], first.id)
        assert [list(turn.sampled_ids) for turn in (first, last)] == [tokens_of(answer) for answer in script.answers]
        assert "1 greeting.txt" in text_of(paths(around.turns)[last.id])


@pytest.mark.parametrize("name", WIRES)
async def test_the_whole_job_succeeds_as_written(name: str, mine: Path, tmp_path: Path) -> None:
    """With its conductor, gateway and sandboxes; its cells are stand-ins."""
    (mine / "tasks" / "hello" / "environment").mkdir()
    (mine / "tasks" / "hello" / "environment" / "agent.py").write_text(AGENTS[name])
    executions = load_rljob(mine / "rljob.yaml").spec.schedule.rollouts_per_group
    script = Script({"greeting.txt": ('```tool bash\n{"command": "echo hello > greeting.txt"}\n```', "Done.")})
    async with stand_ins.running(mine / "rljob.yaml", tmp_path / "runs", script) as job:
        tide = await job.until("the job ends", lambda tide: tide.phase in stand_ins.ENDED)
    assert (tide.phase, tide.terminated) == (JobPhase.SUCCEEDED, executions)
    told = [read_trajectory(file) for file in (tmp_path / "runs" / "trajectories").glob("*")]
    assert [trajectory.score for trajectory in told] == [1.0] * executions
    for trajectory in told:
        first, last = trajectory.turns
        assert (first.wire, last.parent) == (WIRES[name], first.id)
    assert len(list((tmp_path / "runs").glob("executions/*/*/harness.log"))) == executions


def test_every_preset_is_in_every_table() -> None:
    assert set(PRESETS) == set(HARNESS_PRESETS)
    for preset in PRESETS:
        assert PAGE.count(f"| `{preset}` |") >= (3 if preset in PROGRAMS else 1)
    for program in PROGRAMS.values():
        assert f"| npm `{program.package}` {program.version} |" in PAGE


def test_the_times_are_those_of_the_presets() -> None:
    failing = PAGE[PAGE.index("**How they fail.**") :]
    for name, preset in PRESETS.items():
        if name != "react":
            shown = f"{preset.hold_seconds / 60:g} min" if preset.hold_seconds > 600 else f"{preset.hold_seconds:g} s"
            row = next(line for line in failing.splitlines() if line.startswith(f"| `{name}` |"))
            assert row.endswith(f"| {shown} |")

"""What docs/tasks.md tells people to write is a valid job, whose harness and tests work in a jail."""

import re
from pathlib import Path

import pytest
from aiohttp import web

from tidemill.api import load_rljob
from tidemill.local.cores import gpus_of
from tidemill.local.sources import source_rules
from tidemill.local.supported import unsupported
from tidemill_rollout.harness.presets import launch
from tidemill_rollout.sandbox.execution import LocalExecutions
from tidemill_rollout.sandbox.process import Limits
from tidemill_rollout.tasks.source import VERIFIER_SECONDS, Task, load_tasks

GUIDE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()
FILE = re.compile(r"^`(mine/[\w./]+)`[^\n]*\n\n```\w+\n(.*?)```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    for name, text in FILE.findall(GUIDE):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "mine"


def test_the_guide_has_all_files_of_a_valid_job(mine: Path) -> None:
    files = sorted(str(file.relative_to(mine)) for file in mine.rglob("*") if file.is_file())
    task = "tasks/vowels"
    assert files == ["rljob.yaml", f"{task}/environment/agent.py", f"{task}/instruction.md", f"{task}/task.toml", f"{task}/tests/test.sh"]
    job = load_rljob(mine / "rljob.yaml", source_rules(mine))
    assert unsupported(job.spec, gpus_of()) == ()


async def test_its_harness_and_its_tests_work_in_a_jail(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    job = load_rljob(mine / "rljob.yaml")
    (task,) = load_tasks(job.spec.tasks.source, mine)
    asked: list[web.Request] = []

    async def chat(request: web.Request) -> web.Response:
        asked.append(request)
        assert (await request.json())["messages"] == [{"role": "user", "content": "Write a line with many vowels."}]
        return web.json_response({"choices": [{"message": {"content": "aeio tidemill"}}]})

    app = web.Application()
    app.router.add_post("/x/{execution}/v1/chat/completions", chat)
    gateway = web.AppRunner(app)
    await gateway.setup()
    await web.UnixSite(gateway, str(tmp_path / "run" / "gateway.sock")).start()
    executions = LocalExecutions(job, tmp_path / "run", tmp_path / "run" / "gateway.sock")
    executions.check()
    try:
        end = await executions.run("g1-0", 1, task, "the-key", 30.0)
        assert end.exit_code == 0, end.log_tail
        assert (await executions.evaluate("g1-0", 1, task)).score == pytest.approx(7 / 13, abs=1e-4)
        assert asked[0].headers["Authorization"] == "Bearer the-key"
        for file in ("harness.log", "evaluation/output.log", "evaluation.json", "work/line.txt"):
            assert (tmp_path / "run" / "executions" / "g1-0" / "1" / file).exists()
    finally:
        await executions.stop_all()
        await gateway.cleanup()


def test_every_variable_is_named(mine: Path) -> None:
    started = launch(load_rljob(mine / "rljob.yaml"), Task("t", mine, "do it"), "http://127.0.0.1", "key", mine / "instruction.md")
    assert not [name for name in started.environment if f"`{name}`" not in GUIDE]


def test_limits_are_those_of_the_code() -> None:
    limits = Limits()
    assert (limits.disk_bytes, limits.processes, limits.open_files, limits.output_bytes) == (2**30, 512, 4096, 4 * 2**20)
    assert VERIFIER_SECONDS == 600
    for said in ("| disk | 1 GiB", "| processes, files | 512, and 4096 open at once |", "first 4 MiB are kept", "`[verifier] timeout_sec` (600)"):
        assert said in GUIDE

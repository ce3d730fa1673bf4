"""How agent programs are started; each preset also for real, in a jail, with a scripted model."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.jobs import ScriptedModel, bash, job, task
from tidemill_rollout.harness.presets import PRESETS, HarnessError, check, launch, launch_in_image
from tidemill_rollout.sandbox.execution import LocalExecutions

URL = "http://127.0.0.1:8080/x/e-1"


def test_an_unknown_preset_is_refused_with_what_there_is() -> None:
    with pytest.raises(HarnessError, match=r"spec.harness.preset is 'aider'; there are react, claude-code, codex, mini-swe-agent"):
        check(job("aider"))


def test_generic_needs_a_command() -> None:
    with pytest.raises(HarnessError, match=r"spec.harness.command is empty"):
        check(job("generic"))


def test_the_instruction_the_address_and_the_manifests_variables_reach_a_generic_program(tmp_path: Path) -> None:
    wanted = job("generic", command=["agent", "--do", "{instruction}"], env={"MODE": "fast", "OPENAI_BASE_URL": "overridden"})
    started = launch(wanted, task(tmp_path / "t"), URL, "secret", tmp_path / "instruction.md")
    assert started.command == ("agent", "--do", "Copy question.txt to answer.txt.")
    assert started.environment["ANTHROPIC_BASE_URL"] == URL
    assert started.environment["ANTHROPIC_AUTH_TOKEN"] == "secret"
    assert (started.environment["MODE"], started.environment["OPENAI_BASE_URL"]) == ("fast", "overridden")
    assert started.files["/run/harness/instruction.md"] == tmp_path / "instruction.md"


async def finish(preset: str, tmp_path: Path, model: ScriptedModel, **harness: Any) -> tuple[int, str, float]:
    """Exit code, end of the log and score of one execution."""
    executions = LocalExecutions(job(preset, **harness), tmp_path, model.socket)
    executions.check()
    work = task(tmp_path / "task")
    async with model:
        end = await executions.run("e-1", 1, work, "secret", 120)
        evaluation = await executions.evaluate("e-1", 1, work)
    await executions.stop_all()
    return end.exit_code, end.log_tail, evaluation.score


async def test_react_solves_a_task_in_a_jail(tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        said = body["messages"][-1]["content"]
        return {"content": "ANSWER: 42" if said == "42" else "RUN: cat question.txt"}

    model = ScriptedModel(tmp_path / "gateway.sock", reply)
    code, log, score = await finish("react", tmp_path, model)
    assert (code, score) == (0, 1.0), log
    assert [(path, key) for path, key, _ in model.requests] == [("/x/e-1/v1/chat/completions", "Bearer secret")] * 2


async def test_mini_swe_agent_as_it_is_solves_a_task_in_a_jail_without_a_network(tmp_path: Path) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        if len(body["messages"]) == 2:
            return bash("cp question.txt answer.txt; cat answer.txt")
        return bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")

    model = ScriptedModel(tmp_path / "gateway.sock", reply)
    code, log, score = await finish("mini-swe-agent", tmp_path, model)
    assert (code, score) == (0, 1.0), log
    assert len(model.requests) == 2
    path, key, body = model.requests[1]
    assert (path, key, body["model"]) == ("/x/e-1/v1/chat/completions", "Bearer secret", "policy")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["bash"]
    assert "42" in body["messages"][-1]["content"]
    assert (tmp_path / "executions/e-1/1/logs/agent/trajectory.json").exists()


async def test_a_generic_program_finds_the_gateway_by_its_variables(tmp_path: Path) -> None:
    script = (
        "import json, os, urllib.request as r\n"
        "ask = r.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', b'{}', {'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY']})\n"
        "open('answer.txt', 'w').write(json.load(r.urlopen(ask, timeout=10))['choices'][0]['message']['content'])\n"
    )
    model = ScriptedModel(tmp_path / "gateway.sock", lambda body: {"content": "42"})
    code, log, score = await finish("generic", tmp_path, model, command=["python3", "-c", script])
    assert (code, score) == (0, 1.0), log
    assert model.requests[0][:2] == ("/x/e-1/v1/chat/completions", "Bearer secret")


def test_what_runs_in_an_image_names_nothing_of_this_machine(tmp_path: Path) -> None:
    work = task(tmp_path / "t")
    for preset in PRESETS:
        started = launch_in_image(job(preset, command=["agent"]), work, URL, "secret", tmp_path / "instruction.md")
        assert started.programs == ()
        for word in (*started.command, *started.environment.values()):
            assert str(tmp_path) not in word
            assert sys.prefix not in word
            assert sys.base_prefix not in word
        assert all(inside.startswith("/run/harness/") for inside in started.files)


def test_mini_swe_agent_of_an_image_is_given_its_own_configuration_by_the_whole_path(tmp_path: Path) -> None:
    """With an image's Python that has the package, and a `mini` that says how it was called."""
    package = tmp_path / "site" / "minisweagent"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    programs = {"mini": 'printf "%s\\n" "$@"', "python3": f'shift; exec env PYTHONPATH={tmp_path}/site {sys.executable} "$@"'}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    started = launch_in_image(job("mini-swe-agent"), task(tmp_path / "t"), URL, "secret", tmp_path / "instruction.md")
    environment = {**started.environment, "PATH": f"{tmp_path}:{os.defpath}"}
    called = subprocess.run(started.command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    assert called[:2] == ["-c", f"{package}/config/mini.yaml"]
    assert called[called.index("-t") + 1] == "Copy question.txt to answer.txt."
    assert environment["OPENAI_BASE_URL"] == f"{URL}/v1"

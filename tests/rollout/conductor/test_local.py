"""What goes wrong in a jail is told as what it is: the sandbox's failure or the evaluator's, of one execution."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rollout.jobs import job, task
from tidemill_rollout.conductor.local import LocalSandboxes
from tidemill_rollout.conductor.sandboxes import EvaluatorCrashed, SandboxBroken
from tidemill_rollout.sandbox.execution import LocalExecutions


@pytest.mark.parametrize("hindrance", ["a variable", "a word", "its name"])
async def test_what_no_program_can_be_given_breaks_one_sandbox(tmp_path: Path, hindrance: str) -> None:
    """A manifest or a task with a NUL is refused before. Should one come through, nobody else suffers."""
    manifest, work = job("generic", command=["true", "{instruction}"]), task(tmp_path / "task")
    if hindrance == "a variable":
        work = replace(work, environment=(("A", "x\0y"),))
    elif hindrance == "a word":
        work = replace(work, instruction="x\0y")
    else:
        work = replace(work, name="x\0y")
    executions = LocalExecutions(manifest, tmp_path, tmp_path / "gateway.sock")
    executions.check()
    sandboxes = LocalSandboxes(executions, {"copy": work})
    if hindrance == "a word":
        with pytest.raises(SandboxBroken, match="null byte"):
            await sandboxes.run("e-1", 1, "copy", "key", 20.0)
    else:
        end = await sandboxes.run("e-1", 1, "copy", "key", 20.0)
        assert end.exit_code == 127
        assert "null byte" in end.log_tail


async def test_a_kept_score_that_cannot_be_read_is_no_zero(tmp_path: Path) -> None:
    executions = LocalExecutions(job("generic", command=["true"]), tmp_path, tmp_path / "gateway.sock")
    executions.check()
    sandboxes = LocalSandboxes(executions, {"copy": task(tmp_path / "task")})
    await sandboxes.run("e-1", 1, "copy", "key", 20.0)
    (tmp_path / "executions" / "e-1" / "1" / "evaluation.json").write_text("{")  # half of it, from before a power failure
    with pytest.raises(EvaluatorCrashed):
        await sandboxes.evaluate("e-1", 1, "copy")

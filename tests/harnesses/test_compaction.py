"""A history that outgrows the context is compacted by the agent: the summary is a turn of its own class, and what follows a new root."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.harnesses.agents import DONE, INSTRUCTION
from tests.harnesses.script import OPENING, Script, calls
from tests.harnesses.world import MAX_LENGTH, Setting, work
from tidemill_rollout.harness import claude_code, codex, opencode, qwen_code

pytestmark = pytest.mark.timeout(900)  # the first time it is installed

SUMMARY = "<analysis>short</analysis>\n<summary>THE-SUMMARY: a file is to be written and checked.</summary>"
ANSWERS = 12
"""More large outputs than any of these contexts holds."""


@dataclass
class Case:
    preset: str
    asks: str  # in the user message that asks for the summary
    tool: str
    output_bytes: int
    max_length: int = MAX_LENGTH
    environment: tuple[tuple[str, str], ...] = ()
    forks: int = 0  # so many turns before the last; 0: the summary is asked for with other tools, so by a path of its own
    version: str = ""
    why: str = "grows"


class Compacting(Script):
    """Asks for large outputs until it is asked for a summary. With that in the prompt it is done."""

    def __init__(self, case: Case) -> None:
        super().__init__({})
        self._case = case

    def __call__(self, prompt: str) -> str:
        asked = prompt.rpartition("<|im_start|>user\n")[2]
        number = prompt.count(OPENING) - 1
        if self._case.asks in asked:
            key, answer = ("summary", 0), SUMMARY
        elif "THE-SUMMARY" in prompt:
            key, answer = ("after", 0), DONE
        elif number < ANSWERS:
            key, answer = ("before", number), calls("Look.", (self._case.tool, self._arguments(number)))
        else:
            key, answer = ("before", number), "It was never compacted."
        self.given[key] = answer
        return answer

    @property
    def answers(self) -> tuple[str, ...]:
        return tuple(self.given.values())

    @property
    def tree(self) -> list[tuple[str, str, str]]:
        """As `Outcome.tree`."""
        before = ["", *(answer for (part, _), answer in sorted(self.given.items()) if part == "before")]
        chain = [(earlier, later, "main") for earlier, later in pairwise(before)]
        parent = before[-1 - self._case.forks] if self._case.forks else ""
        return sorted([*chain, (parent, SUMMARY, "main-summary"), ("", DONE, "main")])

    def _arguments(self, number: int) -> dict[str, object]:
        command = f"head -c {self._case.output_bytes} /dev/zero | tr '\\0' x; echo {number}"
        if self._case.preset == "codex":
            return {"cmd": command}
        return {"command": command, "description": "Look", **({"is_background": False} if self._case.preset == "qwen-code" else {})}


WIDE = (("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "400000"),)  # so that it goes on until the gateway says that the prompt is too long
WINDOW = (("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "160000"),)
CASES = (
    Case("claude-code", claude_code.SUMMARY, "Bash", 28_000, environment=WINDOW, forks=1),
    Case("claude-code", claude_code.SUMMARY, "Bash", 28_000, environment=WINDOW, forks=1, version="2.1.332"),
    Case("claude-code", claude_code.SUMMARY, "Bash", 28_000, 150_000, environment=WIDE, forks=2, why="is refused"),
    Case("codex", codex.SUMMARY, "exec_command", 28_000, 100_000),
    Case("qwen-code", qwen_code.SUMMARY, "run_shell_command", 24_000, 150_000),
    Case("opencode", opencode.SUMMARY, "bash", 10_700, 100_000),
)


def setting_of(case: Case, script: Compacting) -> Setting:
    return Setting(case.preset, INSTRUCTION, script, version=case.version, environment=dict(case.environment), max_length=case.max_length)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.preset} {case.version} {case.why}")
async def test_the_summary_of_a_compaction_is_told_from_the_agents_work(case: Case, tmp_path: Path) -> None:
    script = Compacting(case)
    done = await work(setting_of(case, script), tmp_path)
    assert done.exit_code == 0, done.said
    assert DONE in done.said
    done.check_tokens()
    assert done.tree == script.tree


DELEGATED = calls("A helper.", ("Agent", {"description": "Helper", "prompt": "TASK-SUB: do your part", "subagent_type": "general-purpose"}))


class CompactingHelper(Compacting):
    """The same of a sub-agent, which the main agent starts and waits for."""

    def __call__(self, prompt: str) -> str:
        if "TASK-MAIN" not in prompt:
            return super().__call__(prompt)
        number = prompt.count(OPENING) - 1
        self.given["main", number] = (DELEGATED, DONE)[number]
        return self.given["main", number]

    @property
    def tree(self) -> list[tuple[str, str, str]]:
        compacted = [(before, answer, kind.replace("main", "sub-agent")) for before, answer, kind in super().tree]
        return sorted([*compacted, ("", DELEGATED, "main"), (DELEGATED, DONE, "main")])


GROWING = [case for case in CASES if case.preset == "claude-code" and case.why == "grows"]


@pytest.mark.parametrize("case", GROWING, ids=lambda case: f"{case.preset} {case.version}")
async def test_the_summary_of_a_sub_agents_compaction_is_a_sub_agents_summary(case: Case, tmp_path: Path) -> None:
    script = CompactingHelper(case)
    done = await work(setting_of(case, script), tmp_path)
    assert done.exit_code == 0, done.said
    done.check_tokens()
    assert done.tree == script.tree

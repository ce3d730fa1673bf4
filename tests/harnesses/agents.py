"""The agents under test, and what the policy says to each: the same small task in the words of its own tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.harnesses.script import Said, Script, calls

INSTRUCTION = "TASK-MAIN: write a second line into notes.txt, then check it.\n"
DONE = "All is done."
LINES = "first line\nsecond line\n"

Conversations = dict[str, tuple[Said, ...]]


@dataclass(frozen=True)
class Agent:
    preset: str
    says: Callable[[str], Conversations]  # given the work folder; conversations by mark
    version: str = ""

    def script(self, place: str) -> Script:
        return Script(self.says(place))


def tree_of(script: Script) -> list[tuple[str, str, str]]:
    """As `Outcome.tree`, when every conversation is one path and those of sub-agents are marked so."""
    rows = []
    for mark in script.conversations:
        said = script.conversation(mark)
        kind = "sub-agent" if "SUB" in mark else "main"
        rows += [(before, answer, kind) for before, answer in zip(("", *said), said, strict=False)]
    return sorted(rows)


def _claude_code(place: str) -> Conversations:
    def helper(name: str) -> tuple[str, dict[str, str]]:
        return "Agent", {"description": f"Helper {name}", "prompt": f"TASK-SUB-{name}: do your part", "subagent_type": "general-purpose"}

    def bash(command: str) -> tuple[str, dict[str, str]]:
        return "Bash", {"command": command, "description": "Look"}

    notes = f"{place}/notes.txt"
    return {
        "TASK-MAIN": (
            calls("I look.", ("Read", {"file_path": notes}), bash("wc -l < notes.txt"), thought="What is there?"),
            calls("I edit.", ("Edit", {"file_path": notes, "old_string": "first line\n", "new_string": LINES})),
            calls("Two helpers.", helper("A"), helper("B")),
            calls("I check.", bash("cat notes.txt b.txt"), thought="Both are back."),
            DONE,
        ),
        "TASK-SUB-A": (calls("I count.", bash("wc -w < notes.txt")), "There are four words."),
        "TASK-SUB-B": (calls("I write.", ("Write", {"file_path": f"{place}/b.txt", "content": "from B\n"})), "It is written."),
    }


def _mini(place: str) -> Conversations:
    def bash(command: str) -> tuple[str, dict[str, str]]:
        return "bash", {"command": command}

    return {
        "TASK-MAIN": (
            calls("I look.", bash("cat notes.txt"), bash("wc -l < notes.txt"), thought="What is there?"),
            calls("I edit.", bash("echo second line >> notes.txt")),
            calls("I check.", bash("cat notes.txt")),
            calls(DONE, bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
        )
    }


def _qwen_code(place: str) -> Conversations:
    def bash(command: str) -> tuple[str, dict[str, object]]:
        return "run_shell_command", {"command": command, "description": "Look", "is_background": False}

    def helper(name: str) -> tuple[str, dict[str, str]]:
        return "agent", {"description": f"Helper {name}", "prompt": f"TASK-SUB-{name}: do your part", "subagent_type": "general-purpose"}

    notes = f"{place}/notes.txt"
    return {
        "TASK-MAIN": (
            calls("I look.", ("read_file", {"file_path": notes}), bash("wc -l < notes.txt"), thought="What is there?"),
            calls("I edit.", ("edit", {"file_path": notes, "old_string": "first line\n", "new_string": LINES})),
            calls("A helper.", helper("A")),
            calls("I check.", bash("cat notes.txt")),
            DONE,
        ),
        "TASK-SUB-A": (calls("I count.", bash("wc -w < notes.txt")), "There are four words."),
    }


def _opencode(place: str) -> Conversations:
    def bash(command: str) -> tuple[str, dict[str, str]]:
        return "bash", {"command": command, "description": "Look"}

    def helper(name: str) -> tuple[str, dict[str, str]]:
        return "task", {"description": f"Helper {name}", "prompt": f"TASK-SUB-{name}: do your part", "subagent_type": "general"}

    notes = f"{place}/notes.txt"
    return {
        "TASK-MAIN": (
            calls("I look.", ("read", {"filePath": notes}), bash("wc -l < notes.txt"), thought="What is there?"),
            calls("I edit.", ("edit", {"filePath": notes, "oldString": "first line\n", "newString": LINES})),
            calls("Two helpers.", helper("A"), helper("B")),
            calls("I check.", bash("cat notes.txt b.txt")),
            DONE,
        ),
        "TASK-SUB-A": (calls("I count.", bash("wc -w < notes.txt")), "There are four words."),
        "TASK-SUB-B": (calls("I write.", ("write", {"filePath": f"{place}/b.txt", "content": "from B\n"})), "It is written."),
    }


def _codex(place: str) -> Conversations:
    def shell(command: str) -> tuple[str, dict[str, str]]:
        return "exec_command", {"cmd": command}

    def helper(name: str) -> tuple[str, dict[str, str]]:
        return "multi_agent_v1.spawn_agent", {"message": f"TASK-SUB-{name}: do your part"}

    def wait(prompt: str) -> str:
        helpers = re.findall(r'"agent_id": ?"([^"]+)"', prompt)
        return calls("I wait.", *(("multi_agent_v1.wait_agent", {"targets": [agent]}) for agent in helpers))

    return {
        "TASK-MAIN": (
            calls("I look.", shell("cat notes.txt"), shell("wc -l < notes.txt"), thought="What is there?"),
            calls("I edit.", shell("echo second line >> notes.txt")),
            calls("Two helpers.", helper("A"), helper("B")),
            wait,
            calls("I check.", shell("cat notes.txt b.txt")),
            DONE,
        ),
        "TASK-SUB-A": (calls("I count.", shell("wc -w < notes.txt")), "There are four words."),
        "TASK-SUB-B": (calls("I write.", shell("echo from B > b.txt")), "It is written."),
    }


AGENTS = {
    "claude-code": Agent("claude-code", _claude_code),
    "claude-code, current": Agent("claude-code", _claude_code, version="2.1.332"),
    "codex": Agent("codex", _codex),
    "mini-swe-agent": Agent("mini-swe-agent", _mini),
    "qwen-code": Agent("qwen-code", _qwen_code),
    "opencode": Agent("opencode", _opencode),
}

PRESETS = {name: agent for name, agent in AGENTS.items() if not agent.version}
"""Each once."""

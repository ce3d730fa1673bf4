"""Writes the quickstart's tasks, in Harbor's layout, into tasks/ (trained) and heldout/ (only measured). Run it again after a change.

Each task puts one small file into the agent's work folder and asks for the number in it. The agent has to read the file by a command and then
answer with the bare number: two things that a small model does now and then by itself, and nearly always after a few steps of training.
The held-out tasks ask about other people, other numbers and other files.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent

TRAINED = {"rooms": "room number", "seats": "seat number", "keys": "key number", "desks": "desk number", "ports": "port", "scores": "score"}
TRAINED_NAMES = ("Mara", "Otto", "Nils", "Vera", "Ivo", "Lena", "Tom", "Ada", "Finn", "Rosa", "Karl", "Emma")
TRAINED_PER_FILE = 4

HELD_OUT = {"tables": "table number", "badges": "badge number", "shelves": "shelf number", "tracks": "track number"}
HELD_OUT_NAMES = ("Hugo", "Anna", "Paul", "Clara", "Max", "Ruth")
HELD_OUT_PER_FILE = 3

TASK_TOML = """\
schema_version = "1.4"

[metadata]
category = "lookup"

[verifier]
timeout_sec = 30.0

[agent]
timeout_sec = 300.0

[environment]
build_timeout_sec = 600.0
"""

DOCKERFILE = """\
FROM python:3.12-slim
WORKDIR /app
COPY {file} /app/
"""

# A link is no answer: it could point at the expected one.
TEST = """\
#!/bin/bash
# Scores 1 if answer.txt holds the expected number and nothing else, otherwise 0.
score=0
if [ -f answer.txt ] && [ ! -L answer.txt ] && cmp -s answer.txt /tests/expected.txt; then
  score=1
fi
mkdir -p /logs/verifier
echo "$score" > /logs/verifier/reward.txt
"""

SOLUTION = """\
#!/bin/bash
sed 's/.*: //' {file} > answer.txt
"""


class Lookup(NamedTuple):
    """One task: what `name` has in `file`."""

    file: str
    what: str
    name: str
    number: int

    @property
    def folder(self) -> str:
        return f"{Path(self.file).stem}-{self.name.lower()}"

    @property
    def instruction(self) -> str:
        return f"Read {self.file}. What is the {self.what} of {self.name}?"

    def files(self) -> Mapping[str, str]:
        return {
            "task.toml": TASK_TOML,
            "instruction.md": self.instruction + "\n",
            "environment/Dockerfile": DOCKERFILE.format(file=self.file),
            f"environment/{self.file}": f"{self.name}: {self.number}\n",
            "tests/test.sh": TEST,
            "tests/expected.txt": f"{self.number}\n",
            "solution/solve.sh": SOLUTION.format(file=self.file),
        }


def lookups(files: Mapping[str, str], names: tuple[str, ...], per_file: int, seed: int) -> Iterator[Lookup]:
    draw = random.Random(seed)
    for stem, what in files.items():
        for name in draw.sample(names, per_file):
            yield Lookup(f"{stem}.txt", what, name, draw.randrange(10, 100))


def trained() -> tuple[Lookup, ...]:
    return tuple(lookups(TRAINED, TRAINED_NAMES, TRAINED_PER_FILE, seed=1))


def held_out() -> tuple[Lookup, ...]:
    return tuple(lookups(HELD_OUT, HELD_OUT_NAMES, HELD_OUT_PER_FILE, seed=2))


def write(folder: Path, tasks: tuple[Lookup, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for task in tasks:
        for name, text in task.files().items():
            path = folder / task.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if path.suffix == ".sh":
                path.chmod(0o755)


if __name__ == "__main__":
    write(HERE / "tasks", trained())
    write(HERE / "heldout", held_out())

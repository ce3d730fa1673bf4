"""The launch of a program that npm has installed: on this machine from the user's cache, in an image from its PATH."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tidemill.local.programs import PROGRAMS, executable, folder, missing
from tidemill_rollout.harness.preset import HarnessError, Start
from tidemill_rollout.sandbox.process import Launch

_WITH_INSTRUCTION = 'exec "$@" < "$TIDEMILL_INSTRUCTION_FILE"'
"""An argument holds 128 kB at most, and a text that begins with a dash would be read as an option."""


def here(start: Start, options: tuple[str, ...], environment: Mapping[str, str], prepare: str = "") -> Launch:
    """`prepare`: shell commands that run before. The program reads the instruction from its standard input. Raises `HarnessError`."""
    harness = start.job.spec.harness
    program = PROGRAMS[harness.preset]
    script = executable(harness)
    lacking = next(missing(harness), None)
    if lacking is not None:
        raise HarnessError(str(lacking))
    if not script.exists():
        raise HarnessError(
            f"spec.harness.preset is {harness.preset}, but {script} is missing: `tidemill run` installs it, or "
            f"npm install --prefix {folder(harness)} {program.package}@{harness.version or program.version}"
        )
    words: tuple[str, ...] = (str(script),)
    folders: tuple[Path, ...] = (folder(harness),)
    if program.needs_node:
        node = Path(shutil.which("node") or "node").resolve()
        words, folders = (str(node), str(script)), (*folders, node.parent.parent)
    return Launch(_shell(prepare, (*words, *options)), environment, folders)


def in_image(start: Start, options: tuple[str, ...], environment: Mapping[str, str], prepare: str = "") -> Launch:
    return Launch(_shell(prepare, (PROGRAMS[start.job.spec.harness.preset].command, *options)), environment)


def _shell(prepare: str, words: tuple[str, ...]) -> tuple[str, ...]:
    return ("sh", "-c", f"{prepare} && {_WITH_INSTRUCTION}" if prepare else _WITH_INSTRUCTION, *words[:1], *words)

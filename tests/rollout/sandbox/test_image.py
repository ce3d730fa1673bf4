"""The image that prepares sandboxes has what its programs import, and these no more than Python's own library."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_files_that_are_copied_into_the_image_are_all_that_its_programs_need(tmp_path: Path) -> None:
    text = (ROOT / "images" / "sandbox.Dockerfile").read_text().replace("\\\n", " ")
    for words in (line.split()[1:] for line in text.splitlines() if line.startswith("COPY ")):
        *files, folder = words
        target = tmp_path / folder.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(ROOT / file, target)
    (place,) = re.findall(r"PYTHONPATH=(\S+)", text)
    program = f"import sys; sys.path[:0] = [{str(tmp_path / place.lstrip('/'))!r}]; import tidemill_rollout.sandbox.prepare as it; print(it.__file__)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemill_rollout.conductor import room

CHECKPOINT_BYTES = 100 * 2**20


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Path]:
    """A work folder whose checkpoints are on another disk, with one checkpoint of 100 MiB (a sparse file)."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is the same disk as the temporary folder")
        (tmp_path / "checkpoints").symlink_to(other)
        checkpoint = Path(other) / "step-000001"
        checkpoint.mkdir()
        with (checkpoint / "model.safetensors").open("wb") as file:
            file.truncate(CHECKPOINT_BYTES)
        yield tmp_path


@pytest.mark.parametrize(
    ("free", "free_of_checkpoints", "short"),
    [
        (65, 165, []),
        (63, 165, ["work"]),
        (65, 163, ["checkpoints"]),
        (1, 1, ["work", "checkpoints"]),
    ],
)
def test_each_disk_needs_room_for_what_is_written_to_it(
    apart: Path, monkeypatch: pytest.MonkeyPatch, free: int, free_of_checkpoints: int, short: list[str]
) -> None:
    left = {apart: free << 20, apart / "checkpoints": free_of_checkpoints << 20}
    monkeypatch.setattr(shutil, "disk_usage", lambda at: SimpleNamespace(free=left[at]))
    text = room.shortage(apart)
    named = {"work": f"{apart}: its disk has less than 64 MiB left", "checkpoints": f"{apart}/checkpoints: its disk has less than 164 MiB left"}
    assert [disk for disk, words in named.items() if words in text] == short
    assert bool(text) == bool(short)

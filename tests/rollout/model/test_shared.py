"""A model that several pods prepare at once in one folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.engines import tiny_model
from tests.rollout.jobs import job
from tidemill_rollout.model import ModelError, check
from tidemill_rollout.model.shared import Origin, prepare

TINY = Origin("tiny:qwen3", "float32")


def files(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir())


def manifest(folder: Path, source: str) -> Path:
    small = job().model_dump(mode="json", by_alias=True, exclude={"status"}, exclude_unset=True)
    small["spec"]["model"] |= {"source": source, "dtype": "float32"}
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(small))
    return file


def test_a_model_is_made_once_and_found_again(tmp_path: Path) -> None:
    into = tmp_path / "checkpoints" / "model"
    assert prepare(TINY, into, tmp_path, tmp_path) == into
    check(into)
    made = (into / "model.safetensors").stat().st_mtime_ns
    prepare(TINY, into, tmp_path, tmp_path)
    assert (into / "model.safetensors").stat().st_mtime_ns == made
    assert files(into.parent) == [".model.lock", "model"]


def test_paths_and_claims_are_copied_without_touching_them(tmp_path: Path) -> None:
    (tmp_path / "claims" / "weights").mkdir(parents=True)
    (tmp_path / "claims" / "weights" / "tiny").symlink_to(tiny_model())
    prepare(Origin("pvc:weights/tiny", "float32"), tmp_path / "one", tmp_path, tmp_path / "claims")
    prepare(Origin(f"path:{tiny_model()}", "float32"), tmp_path / "two", tmp_path, tmp_path)
    for name in ("one", "two"):
        assert {f for f in files(tmp_path / name) if f != "tidemill-model.json"} == set(files(tiny_model()))
        assert not (tmp_path / name / "model.safetensors").is_symlink()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("path:/nowhere", r"path:/nowhere: model folder /nowhere: there is no such folder.*mount it into the pods"),
        ("pvc:weights/dir", r"pvc:weights/dir: .*is the claim weights there"),
        ("package:unknown", "only package with weights"),
        ("ftp:somewhere", "start it with hf:, path:"),
    ],
)
def test_a_source_that_cannot_be_used_says_what_to_do_and_leaves_nothing(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        prepare(Origin(source, "float32"), tmp_path / "model", tmp_path, tmp_path)
    assert files(tmp_path) == []


def test_what_a_killed_process_left_behind_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".model-abc").mkdir()
    (tmp_path / ".model-abc" / "model.safetensors").write_bytes(b"half")
    prepare(TINY, tmp_path / "model", tmp_path, tmp_path)
    assert files(tmp_path) == [".model.lock", "model"]


def test_another_model_or_a_broken_one_is_never_replaced(tmp_path: Path) -> None:
    into = tmp_path / "model"
    prepare(TINY, into, tmp_path, tmp_path)
    with pytest.raises(ModelError, match="holds tiny:qwen3 in float32, but the job wants tiny:llama"):
        prepare(Origin("tiny:llama", "float32"), into, tmp_path, tmp_path)
    (into / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ModelError, match="not a safetensors file"):
        prepare(TINY, into, tmp_path, tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelError, match="was not made by tidemill"):
        prepare(TINY, tmp_path / "other", tmp_path, tmp_path)


def test_who_may_only_read_waits_for_who_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill_rollout.model.shared._alone", lambda into: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    with pytest.raises(ModelError, match="only read here, and no cell has made it"):
        prepare(TINY, tmp_path / "model", tmp_path, tmp_path, wait_seconds=0.01)


def test_a_pod_that_waits_needs_nothing_of_what_makes_a_model(tmp_path: Path) -> None:
    into = tmp_path / "shared" / "model"
    without = "import sys, runpy; sys.modules.update(dict.fromkeys(['torch', 'transformers']))"
    lacking = f"{without}; runpy.run_module('tidemill_rollout.model', run_name='__main__')"
    command = [sys.executable, "-c", lacking, "--manifest", str(manifest(tmp_path, "tiny:qwen3")), "--into", str(into), "--wait"]
    waiting = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    prepare(TINY, into, tmp_path, tmp_path)
    assert waiting.communicate(timeout=60)[0].strip() == str(into)
    assert waiting.returncode == 0


def test_pods_that_start_together_end_with_one_model(tmp_path: Path) -> None:
    file = manifest(tmp_path, f"path:{tiny_model()}")
    command = [sys.executable, "-m", "tidemill_rollout.model", "--manifest", str(file), "--into", str(tmp_path / "shared" / "model")]
    pods = [subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [pod.communicate(timeout=120)[0].strip() for pod in pods] == [str(tmp_path / "shared" / "model")] * 4
    assert [pod.returncode for pod in pods] == [0] * 4
    assert files(tmp_path / "shared") == [".model.lock", "model"]

import json
import shutil
from pathlib import Path

import pytest

from tests.engines import tiny_model
from tidemill_rollout.model import ModelError, check


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model(), tmp_path / "model")


def test_a_whole_folder_passes_and_gives_its_configuration(folder: Path) -> None:
    assert check(folder)["architectures"] == ["Qwen3ForCausalLM"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"model folder {tmp_path}/nowhere: there is no such folder"):
        check(tmp_path / "nowhere")


def test_everything_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        check(tmp_path)
    for part in ("config.json is missing", "there are no *.safetensors", "there is no tokenizer", "there is no chat template"):
        assert part in str(caught.value)


def test_a_download_that_stopped_half_way_is_seen(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(whole - 1000)
    with pytest.raises(ModelError, match=f"model.safetensors is cut off: {whole - 1000} of {whole} bytes"):
        check(folder)


def test_a_part_that_the_index_names_must_be_there(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"model-00002-of-00002.safetensors is missing"):
        check(folder)


@pytest.mark.parametrize(("text", "problem"), [("{", "config.json is not JSON"), ("{}", "names no architectures"), ("[]", "names no architectures")])
def test_a_broken_configuration_is_seen(folder: Path, text: str, problem: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=problem):
        check(folder)


def test_something_else_in_place_of_the_weights_is_seen(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ModelError, match=r"model.safetensors is not a safetensors file"):
        check(folder)

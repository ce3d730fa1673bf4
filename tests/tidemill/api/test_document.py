"""YAML is read as Kubernetes reads it, and whatever is in the file, the answer is a document or a sentence."""

import itertools
import re
from pathlib import Path

import pytest

from tidemill.api.document import LARGEST, Unreadable, read_document


def read(folder: Path, text: str | bytes) -> object:
    file = folder / "job.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_document(file)


def bomb(levels: int) -> str:
    """Nine aliases of nine aliases of ...: 300 bytes that stand for 9 ** levels values."""
    names = [f"a{n}" for n in range(levels)]
    lines = [f"{here}: &{here} [{', '.join([f'*{before}'] * 9)}]" for before, here in itertools.pairwise(names)]
    return "\n".join([f"{names[0]}: &{names[0]} [{', '.join('x' * 9)}]", *lines])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(9), "aliases make it too large"),
        (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]", "aliases make it too large"),
        (re.sub(r"\[(\*.*)]", r"{<<: [\1]}", bomb(9)).replace("[x,", "{x: 1}#"), "aliases make it too large"),
        ("a: &a {b: *a}", "an alias stands inside of what it names"),
        ("&a [*a]", "an alias stands inside of what it names"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        ("a: " + "9" * 5000, "a number that is too long"),
        ("a: !!binary aGVsbG8=", "JSON has no word for !!binary"),
        ("a: !!int x", "JSON has no word for !!int"),
        ("a: !!timestamp x", "JSON has no word for !!timestamp"),
        ("a: !!set {x}", "JSON has no word for !!set"),
        ("!!python/object/apply:os.system ['true']", "JSON has no word for !!python/object/apply:os.system"),
        ("? [a, b]\n: c", "is not text"),
        ("a: {<<: {1: 2}}", "is not text"),
        ("<<: 3", "expected a mapping"),
        ("a: 1\na: 2", "stands twice"),
        (b"\xff\xfe\x00", "it is not text"),
        ("#" * (LARGEST + 1), "is longer than"),
    ],
)
def test_what_is_no_document_is_refused_in_words(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read(tmp_path, text)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["a\0b", "", "/dev/fd/9999", "/proc/self/mem"])
def test_a_name_that_leads_to_no_file_is_refused_in_words(name: str) -> None:
    with pytest.raises(Unreadable, match="cannot read"):
        read_document(Path(name))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("2026-01-01", "2026-01-01"),
        ("1e-5", 1e-5),
        ("1.0e-5", 1e-5),
        ("-.5", -0.5),
        ("3.", 3.0),
        ("12", 12),
        ("0x1f", 31),
        ("!!str 12", "12"),
        ("'12'", "12"),
        (".inf", float("inf")),
        ("yes", True),
    ],
)
def test_plain_values_are_what_kubernetes_takes_them_for(tmp_path: Path, text: str, value: object) -> None:
    read_value = read(tmp_path, f"a: {text}")
    assert read_value == {"a": value}
    assert isinstance(read_value, dict)
    assert type(read_value["a"]) is type(value)


def test_a_merge_key_merges_and_own_keys_win(tmp_path: Path) -> None:
    text = "base: &base {cpu: 1, memory: 1Gi}\nmine: {<<: *base, memory: 2Gi}\nall: {<<: [{a: 1}, {a: 2, b: 3}]}"
    assert read(tmp_path, text) == {"base": {"cpu": 1, "memory": "1Gi"}, "mine": {"cpu": 1, "memory": "2Gi"}, "all": {"a": 1, "b": 3}}


def test_an_alias_that_is_used_a_few_times_is_fine(tmp_path: Path) -> None:
    assert read(tmp_path, "a: &a {b: [1, 2]}\nc: [*a, *a]") == {"a": {"b": [1, 2]}, "c": [{"b": [1, 2]}, {"b": [1, 2]}]}

"""Checkpoints are complete or absent, transformers loads them, and only those that the job needs are kept."""

import contextlib
import errno
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.trainer.inputs import tiny_model
from tidemill_trainer import checkpoint
from tidemill_trainer.checkpoint import Facts
from tidemill_trainer.model import Model


def write(folder: Path, model_folder: Path, store: Path) -> Model:
    model = Model.load(model_folder, torch.device("cpu"))
    weights = model.hold_weights()
    moments = torch.linspace(0, 1, model.layout.numel)
    named = [(slot.name, slot.of(weights)) for slot in model.layout.slots]
    checkpoint.write(folder, Facts(3, 3, "digest"), named, [("first_moment", moments), ("second_moment", moments * 2)], model_folder, store)
    return model


def test_a_checkpoint_is_a_folder_that_transformers_loads_with_the_same_weights(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "model")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    model = write(tmp_path / "checkpoints" / "step-000003", source, tmp_path / "absent.db")
    folder = tmp_path / "checkpoints" / "step-000003"
    loaded = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    for slot in model.layout.slots:
        assert torch.equal(loaded[slot.name], slot.of(model.hold_weights()))
        assert loaded[slot.name].dtype == torch.float32
    assert (folder / "chat_template.jinja").exists()
    assert checkpoint.read_facts(folder) == Facts(3, 3, "digest")
    moments = dict(checkpoint.read_safetensors(folder / checkpoint.OPTIMIZER))
    assert torch.equal(moments["second_moment"], torch.linspace(0, 1, model.layout.numel) * 2)


def test_it_replaces_one_of_the_same_step_and_leaves_no_partial_folder(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "model")
    folder = tmp_path / "checkpoints" / "step-000003"
    folder.mkdir(parents=True)
    (folder / "rubbish").touch()
    (folder.parent / ".step-000003.partial").mkdir()
    write(folder, source, tmp_path / "absent.db")
    assert [f.name for f in folder.parent.iterdir()] == ["step-000003"]
    assert not (folder / "rubbish").exists()


def test_on_a_full_disk_nothing_of_it_is_left_and_it_is_said(tmp_path: Path) -> None:
    def weights() -> Iterator[tuple[str, Tensor]]:
        yield "first", torch.zeros(4)
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "checkpoints" / "step-000003"
    with pytest.raises(checkpoint.DiskFull, match=r"step-000003: .*No space left"):
        checkpoint.write(folder, Facts(3, 3, "digest"), weights(), [], tiny_model(tmp_path / "model"), tmp_path / "absent.db")
    assert list(folder.parent.iterdir()) == []


def test_it_holds_a_consistent_copy_of_a_store_that_is_being_written(tmp_path: Path) -> None:
    store = tmp_path / "conductor.db"
    writer = sqlite3.connect(store)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("CREATE TABLE numbers (n)")
    writer.execute("INSERT INTO numbers VALUES (1)")
    writer.commit()
    writer.execute("INSERT INTO numbers VALUES (2)")  # not committed
    write(tmp_path / "step-000001", tiny_model(tmp_path / "model"), store)
    assert sqlite3.connect(tmp_path / "step-000001" / checkpoint.STORE).execute("SELECT n FROM numbers").fetchall() == [(1,)]
    writer.close()


@pytest.mark.parametrize("name", ["100%", "a%41b", "x#y", "x?mode=rw&z"])
def test_the_store_is_found_whatever_its_folder_is_called(tmp_path: Path, name: str) -> None:
    store = tmp_path / name / "conductor.db"
    store.parent.mkdir()
    with contextlib.closing(sqlite3.connect(store)) as writer:
        writer.execute("CREATE TABLE numbers (n)")
    checkpoint.copy_store(store, tmp_path / "copy.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT name FROM sqlite_master").fetchall() == [("numbers",)]


def test_pruning_keeps_the_newest_committed_and_the_published_and_removes_what_was_never_committed(tmp_path: Path) -> None:
    for step in range(1, 8):
        (tmp_path / checkpoint.name_of(step)).mkdir()
    (tmp_path / ".step-000008.partial").mkdir()
    checkpoint.prune(tmp_path, keep=2, committed_step=6, needed_steps=frozenset({3}))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["step-000003", "step-000005", "step-000006"]

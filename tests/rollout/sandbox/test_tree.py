"""Folders of hostile shapes."""

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from tidemill_rollout.sandbox import tree


def hostile(folder: Path) -> Path:
    """Links to elsewhere, pipes, sockets, a folder without rights, and one nested deeper than a path can name."""
    folder.mkdir()
    (folder / "file").write_text("content")
    (folder / "script").write_text("#!/bin/sh\n")
    (folder / "script").chmod(0o755)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    (folder / "closed").mkdir()
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(0)
    return folder


def nested(folder: Path, depth: int = 850) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_measuring_counts_blocks_and_entries_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    (tmp_path / "link").symlink_to("/usr")
    assert 100_000 <= tree.measure(tmp_path, sys.maxsize) < 120_000
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 10**12)
    assert tree.measure(tmp_path, sys.maxsize) < 120_000


def test_a_digest_is_of_names_kinds_and_contents_and_follows_no_link(tmp_path: Path) -> None:
    folder = hostile(tmp_path / "a")
    (folder / "closed").chmod(0o700)
    seen = {tree.digest(folder, 10**6)}
    assert {len(digest) for digest in seen} == {len("blake2b:") + 32}
    for change in (
        lambda: (folder / "file").write_text("c0ntent"),
        lambda: (folder / "file").rename(folder / "elif"),
        lambda: (folder / "script").chmod(0o644),
        lambda: (folder / "loop").unlink(),
        lambda: (folder / "closed" / "file").write_text("y"),
        lambda: (folder / "pipe").rename(folder / "closed" / "pipe"),
    ):
        assert tree.digest(folder, 10**6) in seen, "as long as nothing changes"
        change()
        assert tree.digest(folder, 10**6) not in seen
        seen.add(tree.digest(folder, 10**6))


async def test_what_is_too_large_or_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    assert tree.digest(tmp_path / "gone", 10**6) == ""
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 10**12)
    assert tree.digest(tmp_path, 10**9) == ""
    (tmp_path / "very").mkdir()
    nested(tmp_path / "very")
    assert tree.digest(tmp_path / "very", 10**9) == ""
    await tree.remove(tmp_path / "very")


def test_a_million_empty_files_are_not_free(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / str(number)).touch()
    assert tree.measure(tmp_path, sys.maxsize) >= 1000 * tree.INODE_BYTES


async def test_measuring_stops_when_it_has_seen_enough_and_where_no_path_reaches(tmp_path: Path) -> None:
    assert tree.measure(tmp_path / "gone", 10) == 0
    (tmp_path / "very").mkdir()
    nested(tmp_path / "very")
    assert tree.measure(tmp_path, 10**9) > 10**9
    await tree.remove(tmp_path / "very")


async def test_a_copy_keeps_links_and_modes_and_ignores_what_the_links_point_to(tmp_path: Path) -> None:
    source = hostile(tmp_path / "source")
    (source / "closed").chmod(0o700)
    await tree.copy(source, tmp_path / "copy")
    assert (tmp_path / "copy" / "link").is_symlink()
    assert (tmp_path / "copy" / "loop").is_symlink()
    assert os.access(tmp_path / "copy" / "script", os.X_OK)
    assert (tmp_path / "copy" / "file").read_text() == "content"


async def test_a_copy_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(tree.TreeError, match="gone is not a folder"):
        await tree.copy(tmp_path / "gone", tmp_path / "copy")
    with pytest.raises(tree.TreeError, match="No such file") as refusal:
        await tree.copy(hostile(tmp_path / "source"), tmp_path / "no" / "copy")
    assert refusal.value.by_itself


async def test_a_link_to_a_folder_is_neither_copied_nor_measured_nor_emptied(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(bytes(10_000))
    (tmp_path / "elsewhere").chmod(0o500)
    link = tmp_path / "link"
    link.symlink_to("elsewhere")
    assert not tree.is_folder(link)
    assert tree.measure(link, 10**6) == 0
    with pytest.raises(tree.TreeError, match="not a folder"):
        await tree.copy(link, tmp_path / "copy")
    tree.open_up(link)
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o500
    await tree.remove(link)
    assert (tmp_path / "elsewhere" / "file").exists()


async def test_a_folder_too_deep_to_be_copied_is_to_blame_itself_and_a_full_disk_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    nested(tmp_path / "deep", 3000)
    with pytest.raises(tree.TreeError, match="File name too long") as refusal:
        await tree.copy(tmp_path / "deep", tmp_path / "copy")
    assert refusal.value.by_itself
    await tree.remove(tmp_path / "deep")
    await tree.remove(tmp_path / "copy")
    (tmp_path / "cp").write_text("#!/bin/sh\necho 'cp: error writing x: No space left on device' >&2; exit 1\n")
    (tmp_path / "cp").chmod(0o755)
    monkeypatch.setattr(os, "defpath", f"{tmp_path}:{os.defpath}")
    with pytest.raises(tree.TreeError, match="No space left") as refusal:
        await tree.copy(hostile(tmp_path / "source"), tmp_path / "copy")
    assert not refusal.value.by_itself


async def test_a_copy_that_takes_too_long_blames_the_folder_only_if_there_is_much_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = hostile(tmp_path / "source")
    for most, by_itself in ((3, True), (100, False)):
        monkeypatch.setattr(tree, "MANY_ENTRIES", most)
        with pytest.raises(tree.TreeError, match="not done within") as refusal:
            await tree.copy(source, tmp_path / "copy", seconds=0.0)
        assert refusal.value.by_itself is by_itself


async def test_whatever_was_left_behind_can_be_removed(tmp_path: Path) -> None:
    folder = hostile(tmp_path / "left")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    nested(folder)
    await tree.remove(folder)
    assert not folder.exists()
    await tree.remove(folder)

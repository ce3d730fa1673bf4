"""Control groups, on folders that look like the kernel's. The real ones are used by the tests of jails where this machine has them."""

from pathlib import Path

from tidemill_rollout.sandbox.cgroup import Groups, find, sweep


def test_a_group_carries_both_limits_in_either_version(tmp_path: Path) -> None:
    group = Groups(tmp_path, tmp_path, unified=True).make(1000, 10)
    (folder,) = group.folders
    assert (folder / "memory.max").read_text() == "1000"
    assert (folder / "pids.max").read_text() == "10"
    assert group.doors == (str(folder / "cgroup.procs"),)
    (tmp_path / "memory").mkdir()
    (tmp_path / "pids").mkdir()
    memory, pids = Groups(tmp_path / "memory", tmp_path / "pids", unified=False).make(1000, 10).folders
    assert (memory / "memory.limit_in_bytes").read_text() == "1000"
    assert (pids / "pids.max").read_text() == "10"


def test_where_nothing_can_be_made_there_are_none(tmp_path: Path) -> None:
    assert find(tmp_path) is None


def test_sweeping_removes_what_dead_processes_left_and_nothing_of_the_living(tmp_path: Path) -> None:
    for name in ("999999999-1", "1-1"):
        (tmp_path / name).mkdir()
    sweep(Groups(tmp_path, tmp_path, unified=True))
    assert [folder.name for folder in tmp_path.iterdir()] == ["1-1"]
